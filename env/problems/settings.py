"""Settings of the synthetic problems: `prepare.synthetic` of params.yaml."""

from __future__ import annotations

from pydantic import Field, model_validator

from env.settings import Settings


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

    groups: dict[str, int] = Field(
        {"train": 400, "validation": 40, "test": 100},
        description="groups per split and difficulty",
    )
    questions_per_group: int = Field(3, ge=1, le=16)
    levels: dict[str, LevelSettings] = {
        "easy": LevelSettings(papers=4, max_gold=2, distractors=3, hint=True),
        "medium": LevelSettings(papers=8, max_gold=4, distractors=6),
        "hard": LevelSettings(papers=12, max_gold=6, distractors=8),
    }
    seed: int = Field(0, ge=0)
