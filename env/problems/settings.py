"""Settings of the generated problems: `prepare.synthetic` of params.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from env.problems.schema import Split
from env.settings import Settings

MIN_SENTENCES = 4
MAX_SENTENCES = 7
"""Sentences of a synthetic paper, without its title."""

FILLER_NAMES = 16
"""Number of names of a collection that no question asks for."""

MIN_PAPERS = 6
MAX_QUESTIONS = 4
"""Papers and questions of a collection of the world `papers`."""


class LevelSettings(Settings):
    """One difficulty."""

    papers: int = Field(ge=2, le=64, description="papers of one collection")
    max_gold: int = Field(ge=1, le=16, description="most gold papers of one question")
    distractors: int = Field(ge=0, le=16, description="near misses written for each question")
    hint: bool = Field(False, description="the question carries a hint (easy; world names)")
    indirect: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of gold and questions in other words, by alias (world papers)",
    )

    @model_validator(mode="after")
    def _gold_fits(self) -> LevelSettings:
        if self.max_gold > self.papers:
            raise ValueError(f"max_gold {self.max_gold} needs at least as many papers")
        return self


class SyntheticSettings(Settings):
    """Generated problems: the small world of the nano profile, or one of whole papers."""

    world: Literal["names", "papers"] = Field(
        "names", description="one-line sentences for nano, or papers for real models"
    )
    collections: dict[Split, int] = Field(
        {"train": 400, "validation": 40, "test": 100},
        description="collections per split and difficulty",
    )
    questions_per_collection: int = Field(3, ge=1, le=MAX_SENTENCES, description="sharing papers")
    levels: dict[str, LevelSettings] = {
        "easy": LevelSettings(papers=5, max_gold=2, distractors=4, hint=True),
        "medium": LevelSettings(papers=8, max_gold=4, distractors=6),
        "hard": LevelSettings(papers=12, max_gold=6, distractors=8),
    }
    held_out: float = Field(
        1.0, ge=0, le=1, description="share of the test split's names that no other split holds"
    )
    words: int = Field(
        1400, ge=500, le=1600, description="words of a middling paper (world papers)"
    )
    canaries: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of collections with a paper that orders its reader about",
    )
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fits_its_world(self) -> SyntheticSettings:
        if self.world == "names":
            if self.canaries or any(level.indirect for level in self.levels.values()):
                raise ValueError("canaries and indirect are of the world `papers`; leave them at 0")
            return self
        for name, level in self.levels.items():
            if level.hint:
                raise ValueError(f"level {name!r}: hint speaks of the world `names`; set it false")
            least = max(MIN_PAPERS, level.max_gold + 2)
            if level.papers < least:
                raise ValueError(
                    f"level {name!r}: {level.papers} papers are too few for the world `papers` "
                    f"and max_gold {level.max_gold}; allow at least {least}"
                )
        if self.questions_per_collection > MAX_QUESTIONS:
            raise ValueError(
                f"questions_per_collection {self.questions_per_collection}: the world "
                f"`papers` allows {MAX_QUESTIONS}"
            )
        return self

    @model_validator(mode="after")
    def _sentences_fit(self) -> SyntheticSettings:
        if self.world != "names":
            return self
        for name, level in self.levels.items():
            needed = self.questions_per_collection * (level.max_gold + level.distractors)
            room = level.papers * MAX_SENTENCES
            if needed > room:
                raise ValueError(
                    f"level {name!r}: {self.questions_per_collection} questions need up to "
                    f"{needed} sentences, {level.papers} papers hold {room}; ask less or add papers"
                )
        return self
