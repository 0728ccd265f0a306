"""Settings of the source `files`: `prepare.files` and `splits`.

The generator's settings are in `env/problems/fields.py`, because the server reads them too.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from env.settings import Settings


class FilesSettings(Settings):
    """File of the user's own problems."""

    path: str | None = "problems.jsonl"
    """JSONL; docs/own_data.md. None: headings alone."""
    documents: str | None = None
    """Folder of the files that the problems quote (text, HTML, PDF)."""
    headings: str | None = None
    """Folder whose headings are the questions to train on; those of `path` are the test."""

    @model_validator(mode="after")
    def _asks(self) -> FilesSettings:
        if self.path is None and self.headings is None:
            raise ValueError("there are no questions: name a file in path, or a folder in headings")
        return self


class SplitSettings(Settings):
    """Assignment of the collections of the source `files` to splits."""

    validation: float = Field(0.1, ge=0, lt=1)
    """Share of the problems."""
    test: float = Field(0.2, gt=0, lt=1)
    """Share of the problems."""
    similar_papers: float = Field(0.5, gt=0, le=1)
    """Share of common sentences from which papers are the same."""
    seed: int = Field(0, ge=0)
    trained: str | None = None
    """JSON list of questions that a model was trained on before, as `question_key`; their
    collections train again (rlm/retrain writes it).
    """

    @model_validator(mode="after")
    def _train_is_left(self) -> SplitSettings:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test leave nothing to train on")
        return self
