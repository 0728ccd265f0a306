"""Settings of the synthetic problems: `prepare.synthetic` of params.yaml."""

from __future__ import annotations

from pydantic import Field, model_validator

from env.problems.schema import Split
from env.settings import Settings

MIN_SENTENCES = 4
MAX_SENTENCES = 7
"""Sentences of a synthetic paper, its title not counted."""

FILLER_NAMES = 16
"""Names of a group that no question asks for."""


class LevelSettings(Settings):
    """One difficulty."""

    papers: int = Field(ge=2, le=64, description="papers of one group")
    max_gold: int = Field(ge=1, le=16, description="most gold papers of one question")
    distractors: int = Field(ge=0, le=16, description="sentences naming one of the two names")
    hint: bool = Field(False, description="the question carries a hint (easy)")

    @model_validator(mode="after")
    def _gold_fits(self) -> LevelSettings:
        if self.max_gold > self.papers:
            raise ValueError(f"max_gold {self.max_gold} needs at least as many papers")
        return self


class SyntheticSettings(Settings):
    """The small world of the nano profile."""

    groups: dict[Split, int] = Field(
        {"train": 400, "validation": 40, "test": 100},
        description="groups per split and difficulty",
    )
    questions_per_group: int = Field(3, ge=1, le=MAX_SENTENCES, description="sharing papers")
    levels: dict[str, LevelSettings] = {
        "easy": LevelSettings(papers=5, max_gold=2, distractors=4, hint=True),
        "medium": LevelSettings(papers=8, max_gold=4, distractors=6),
        "hard": LevelSettings(papers=12, max_gold=6, distractors=8),
    }
    held_out: float = Field(
        1.0, ge=0, le=1, description="share of the test split's names that no other split holds"
    )
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _sentences_fit(self) -> SyntheticSettings:
        for name, level in self.levels.items():
            needed = self.questions_per_group * (level.max_gold + level.distractors)
            room = level.papers * MAX_SENTENCES
            if needed > room:
                raise ValueError(
                    f"level {name!r}: {self.questions_per_group} questions need up to {needed} "
                    f"sentences, {level.papers} papers hold {room}; ask less or add papers"
                )
        return self
