"""The registered model: it takes a question and documents and returns quotes with their places.

A models-from-code file, loaded by its path (nothing in this folder is importable). It plays whole
recursive episodes. The policy is the merged model, in the mode in which promotion compared it. The
REPLs belong to an environment server, which starts at the first prediction and ends with the model.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from mlflow.pyfunc import PythonModel, PythonModelContext
from pydantic import BaseModel, ConfigDict, model_validator
from transformers.utils.logging import disable_progress_bar

from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts import own_documents
from env.errors import EpisodeError
from tasks import config
from tasks.deployment.local import local_server
from tasks.errors import PipelineError
from tasks.registry import serving


class Document(BaseModel):
    """One document; a bare text is valid, too."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    """Id in the answer; the default is p1, p2, ... by position."""
    title: str | None = None
    text: str

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class Question(BaseModel):
    """One question and its documents."""

    model_config = ConfigDict(extra="forbid")

    question: str
    documents: list[Document]
    seed: int | None = None
    """Seed of the sampling, if the model is served in the mode `sampled`."""


class Evidence(BaseModel):
    """A verbatim quote: characters [start, end) of a document's text."""

    id: str
    title: str | None = None
    start: int
    end: int
    text: str


class Answer(own_documents.Answer):
    """Result of one question, with the title of each quote's document."""

    evidence: list[Evidence]


class RecursiveModel(PythonModel):
    """Plays all questions of one call at the same time; calls wait for each other."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy and the settings of its registration."""
        disable_progress_bar()  # of a file that takes a moment
        files = context.artifacts
        self.params = serving.for_documents(config.read_resolved(Path(files["settings"])))
        self.policy = TransformersPolicy(*load_model(files["model"]), self.params.serving)
        self.open = ExitStack()
        weakref.finalize(self, self.open.close)  # a deleted model leaves no server
        self.url = ""
        self.one_at_a_time = Lock()

    def predict(
        self, context: PythonModelContext | None, model_input: list[Question], params: Any = None
    ) -> list[Answer]:
        """Answer each question."""
        if context is None:  # MLflow tries the example while it logs the model
            return []
        questions = [self._question(number, row) for number, row in enumerate(model_input, 1)]
        with self.one_at_a_time:
            answers = self._play(questions)
        return [
            {**answer.model_dump(), "evidence": _evidence(answer, _by_id(row))}
            for answer, row in zip(answers, model_input, strict=True)
        ]

    def _question(self, number: int, row: Question) -> own_documents.Question:
        documents = _by_id(row)
        question = own_documents.Question(
            row.question,
            {name: document.text for name, document in documents.items()},
            row.seed or 0,
        )
        reason = own_documents.question_fault(question, self.params.env)
        if len(documents) < len(row.documents):
            reason = "two documents have the same id; give each its own"
        if reason is not None:
            raise MlflowException(f"question {number}: {reason}", INVALID_PARAMETER_VALUE)
        return question

    def _play(self, questions: list[own_documents.Question]) -> list[own_documents.Answer]:
        if not questions:
            return []
        try:
            if not self.url:
                self.url = self.open.enter_context(local_server(self.params, None))
            played = serving.play(self.policy, self.url, questions, self.params)
        except (EpisodeError, PipelineError) as error:
            self.url = ""
            self.open.close()
            raise MlflowException(
                f"the environment of this model failed ({error}). The next request starts a new "
                "one: ask again.",
                TEMPORARILY_UNAVAILABLE,
            ) from error
        return [answer for answer, _ in played]


def _by_id(row: Question) -> dict[str, Document]:
    """Documents by id, in order."""
    return {document.id or f"p{place}": document for place, document in enumerate(row.documents, 1)}


def _evidence(answer: own_documents.Answer, documents: dict[str, Document]) -> list[dict[str, Any]]:
    return [
        {"id": quote.document, "title": documents[quote.document].title}
        | quote.model_dump(exclude={"document"})
        for quote in answer.evidence
    ]


mlflow.models.set_model(RecursiveModel())
