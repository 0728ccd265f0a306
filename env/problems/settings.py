"""Settings of the generated problems: `prepare.synthetic` of params.yaml."""

from __future__ import annotations

from collections import Counter

from pydantic import Field, model_validator

from env.problems.lexicon import FIELDS, trained_names
from env.problems.lexicon import MOST as MOST_BENCHMARKS
from env.problems.schema import SPLITS, Split
from env.settings import Settings

FILLER_NAMES = 16
"""Number of names of a collection that no question asks for."""

HITS = 3
"""Sentences of a method that a question asks for, in each paper."""


def gold_sentences(papers: int) -> int:
    """Gold sentences of a question: an eighth of the method's sentences."""
    return max(1, round(HITS * papers / len(FIELDS)))


class LevelSettings(Settings):
    """One difficulty."""

    papers: int = Field(ge=2, le=64, description="papers of one collection")
    splits: list[Split] = Field(
        list(SPLITS), min_length=1, description="splits that have problems of this level"
    )

    @property
    def gold(self) -> int:
        """Gold sentences of a question."""
        return gold_sentences(self.papers)

    @property
    def distractors(self) -> int:
        """Sentences of its method that are no gold."""
        return HITS * self.papers - self.gold


class SyntheticSettings(Settings):
    """Generated problems: the made-up world `fields`, in which nano learns."""

    collections: dict[Split, int] = Field(
        {"train": 400, "validation": 40, "test": 100},
        description="collections per split and difficulty",
    )
    questions_per_collection: int = Field(3, ge=1, le=7, description="sharing papers")
    levels: dict[str, LevelSettings] = {
        "easy": LevelSettings(papers=4),
        "medium": LevelSettings(papers=8),
        "hard": LevelSettings(papers=16),
        "double": LevelSettings(papers=32, splits=["validation"]),
    }
    lexicon: int = Field(
        512,
        ge=len(FIELDS),
        le=MOST_BENCHMARKS,
        multiple_of=len(FIELDS),
        description="benchmarks that have a field",
    )
    seed: int = Field(0, ge=0)

    def levels_of(self, split: Split) -> list[str]:
        """Names of the levels that have problems in a split, in the order of the settings."""
        return [name for name, level in self.levels.items() if split in level.splits]

    @model_validator(mode="after")
    def _lexicon_is_large_enough(self) -> SyntheticSettings:
        counts = Counter(trained_names(self.lexicon).values())  # by field
        fewest, most = min(counts.values()), max(counts.values())
        for name, level in self.levels.items():
            if level.gold > fewest or level.distractors > counts.total() - most:
                raise ValueError(
                    f"level {name!r}: a method has {HITS * level.papers} sentences, each with "
                    f"another benchmark; raise lexicon {self.lexicon} or lower papers"
                )
        return self
