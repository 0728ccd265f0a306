"""Settings of the generated problems: `prepare.synthetic` of params.yaml."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field, model_validator

from env.problems.lexicon import FIELDS, trained_names
from env.problems.lexicon import MOST as MOST_BENCHMARKS
from env.problems.schema import SPLITS, Split
from env.settings import Settings

FILLER_NAMES = 16
"""Number of names of a collection that no question asks for."""

MIN_PAPERS = 6
MAX_QUESTIONS = 4
"""Papers and questions of a collection of the world `papers`."""

HITS = 3
"""Sentences of a method that a question asks for, in each paper of the world `fields`."""
MAX_NEAR = 16
"""Most gold papers and near misses of a question in the world `papers`."""


def gold_sentences(papers: int) -> int:
    """Gold sentences of a question of the world `fields`: an eighth of the method's sentences."""
    return max(1, round(HITS * papers / len(FIELDS)))


class LevelSettings(Settings):
    """One difficulty."""

    papers: int = Field(ge=2, le=64, description="papers of one collection")
    max_gold: int = Field(ge=1, le=64, description="most gold papers of one question")
    distractors: int = Field(ge=0, le=256, description="near misses written for each question")
    indirect: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of gold and questions in other words, by alias (world papers)",
    )
    splits: list[Split] = Field(
        list(SPLITS), min_length=1, description="splits that have problems of this level"
    )

    @model_validator(mode="after")
    def _gold_fits(self) -> LevelSettings:
        if self.max_gold > self.papers:
            raise ValueError(f"max_gold {self.max_gold} needs at least as many papers")
        return self


def fields_level(papers: int) -> LevelSettings:
    """Level of the world `fields` with this number of papers."""
    gold = gold_sentences(papers)
    return LevelSettings(papers=papers, max_gold=gold, distractors=HITS * papers - gold)


class SyntheticSettings(Settings):
    """Generated problems: the small world of the nano profile, or one of whole papers."""

    world: Literal["fields", "papers"] = Field(
        "fields", description="one-line sentences for nano, or papers for real models"
    )
    collections: dict[Split, int] = Field(
        {"train": 400, "validation": 40, "test": 100},
        description="collections per split and difficulty",
    )
    questions_per_collection: int = Field(3, ge=1, le=7, description="sharing papers")
    levels: dict[str, LevelSettings] = {
        "easy": fields_level(4),
        "medium": fields_level(8),
        "hard": fields_level(16),
        "double": fields_level(32).model_copy(update={"splits": ["validation"]}),
    }
    words: int = Field(
        1400, ge=500, le=1600, description="words of a middling paper (world papers)"
    )
    canaries: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of collections with a paper that orders its reader about",
    )
    lexicon: int = Field(
        512,
        ge=len(FIELDS),
        le=MOST_BENCHMARKS,
        multiple_of=len(FIELDS),
        description="benchmarks that have a field (world fields)",
    )
    seed: int = Field(0, ge=0)

    def levels_of(self, split: Split) -> list[str]:
        """Names of the levels that have problems in a split, in the order of the settings."""
        return [name for name, level in self.levels.items() if split in level.splits]

    @model_validator(mode="after")
    def _fits_its_world(self) -> SyntheticSettings:
        if self.world != "papers" and (
            self.canaries or any(level.indirect for level in self.levels.values())
        ):
            raise ValueError("canaries and indirect are of the world `papers`; leave them at 0")
        for name, level in self.levels.items():
            if self.world != "fields" and max(level.max_gold, level.distractors) > MAX_NEAR:
                raise ValueError(
                    f"level {name!r}: more than {MAX_NEAR} max_gold or distractors are of the "
                    "world `fields`; ask for fewer"
                )
        return self

    @model_validator(mode="after")
    def _fits_the_world_fields(self) -> SyntheticSettings:
        if self.world != "fields":
            return self
        counts = Counter(trained_names(self.lexicon).values())  # by field
        fewest, most = min(counts.values()), max(counts.values())
        for name, level in self.levels.items():
            right = fields_level(level.papers)
            if (level.max_gold, level.distractors) != (right.max_gold, right.distractors):
                raise ValueError(
                    f"level {name!r}: {level.papers} papers of the world `fields` have "
                    f"{HITS * level.papers} sentences of a method; set max_gold {right.max_gold} "
                    f"and distractors {right.distractors}"
                )
            if right.max_gold > fewest or right.distractors > counts.total() - most:
                raise ValueError(
                    f"level {name!r}: a method has {HITS * level.papers} sentences, each with "
                    f"another benchmark; raise lexicon {self.lexicon} or lower papers"
                )
        return self

    @model_validator(mode="after")
    def _fits_the_world_papers(self) -> SyntheticSettings:
        if self.world != "papers":
            return self
        for name, level in self.levels.items():
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
