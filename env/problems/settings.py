"""Settings of the problems' sources: the section `prepare` of params.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from env.problems.schema import Split
from env.settings import Settings

MIN_SENTENCES = 4
MAX_SENTENCES = 7
"""Sentences of a synthetic paper, its title not counted."""

FILLER_NAMES = 16
"""Names of a group that no question asks for."""

MIN_PAPERS = 6
MAX_QUESTIONS = 4
"""Papers and questions of a group of the world `papers`."""


class LevelSettings(Settings):
    """One difficulty."""

    papers: int = Field(ge=2, le=64, description="papers of one group")
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
    held_out_templates: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the test split's questions and sentences in wordings that no other "
        "split holds (world names; in papers `held_out` says it)",
    )
    words: int = Field(
        1400, ge=500, le=1600, description="words of a middling paper (world papers)"
    )
    canaries: float = Field(
        0.0, ge=0, le=1, description="share of groups with a paper that orders its reader about"
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
        if self.questions_per_group > MAX_QUESTIONS:
            raise ValueError(
                f"questions_per_group {self.questions_per_group}: the world `papers` allows "
                f"{MAX_QUESTIONS}"
            )
        return self

    @model_validator(mode="after")
    def _sentences_fit(self) -> SyntheticSettings:
        if self.world != "names":
            return self
        for name, level in self.levels.items():
            needed = self.questions_per_group * (level.max_gold + level.distractors)
            room = level.papers * MAX_SENTENCES
            if needed > room:
                raise ValueError(
                    f"level {name!r}: {self.questions_per_group} questions need up to {needed} "
                    f"sentences, {level.papers} papers hold {room}; ask less or add papers"
                )
        return self


class HubSettings(Settings):
    """A data set of the form of `alphaXiv/multi-paper-synthetic`."""

    name: str = Field(
        "alphaXiv/multi-paper-synthetic", description="on the Hub, or a local file of that shape"
    )
    split: str = Field("train", description="the data set's own split that is read")
    revision: str | None = Field(None, description="commit or tag on the Hub")
    attempts: int = Field(3, ge=1, le=20, description="tries when the Hub does not answer")


class FilesSettings(Settings):
    """The user's own problems."""

    path: str = Field("problems.jsonl", description="JSONL or Parquet; docs/own_data.md")
    documents: str | None = Field(
        None, description="folder of the files that the problems quote (text, HTML, PDF)"
    )
    max_mb: int = Field(64, ge=1, le=1024, description="megabytes of one line or one document")


class AlignSettings(Settings):
    """Where a quote stands in a paper, when it does not stand there letter by letter."""

    min_similarity: float = Field(
        92.0, gt=50, le=100, description="rapidfuzz's ratio, 0 to 100; 100: exact quotes only"
    )


class SplitSettings(Settings):
    """How groups of problems of the sources `hub` and `files` fall into splits."""

    validation: float = Field(0.1, ge=0, lt=1, description="share of the problems")
    test: float = Field(0.2, gt=0, lt=1, description="share of the problems")
    similar_questions: float = Field(
        90.0, gt=50, le=100, description="share of common words from which questions are the same"
    )
    similar_papers: float = Field(
        0.5, gt=0, le=1, description="share of common sentences from which papers are the same"
    )
    seed: int = Field(0, ge=0)
    trained: str | None = Field(
        None,
        description="JSON list of questions that a model was trained on before, as `question_key`; "
        "their groups train again (rlm/retrain writes it)",
    )

    @model_validator(mode="after")
    def _train_is_left(self) -> SplitSettings:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test leave nothing to train on")
        return self
