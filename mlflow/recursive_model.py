"""The registered model: a question and documents in, quotes with their places out.

A models-from-code file, loaded by its path (nothing in this folder is importable). It plays whole
recursive episodes: the policy is the merged model in the mode that promotion compared it in, the
REPLs are those of an environment's server, which this process starts at its first prediction and
which ends with the model.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE
from mlflow.pyfunc import PythonModel, PythonModelContext
from pydantic import BaseModel, ConfigDict, model_validator

from agent import answers
from agent.models import TransformersPolicy, load_model
from env.errors import EpisodeError
from tasks import config, serving
from tasks.errors import PipelineError


class Document(BaseModel):
    """One document; a bare text is one too."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    """Named in the answer; without one it is p1, p2, ... by its place."""
    title: str | None = None
    text: str

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class Question(BaseModel):
    """One question about the documents that come with it."""

    model_config = ConfigDict(extra="forbid")

    question: str
    documents: list[Document]
    seed: int | None = None
    """Of the sampling, where the model is served in the mode `sampled`."""


class Evidence(BaseModel):
    """A verbatim quote: characters [start, end) of a document's text."""

    id: str
    title: str | None = None
    start: int
    end: int
    text: str


class Answer(BaseModel):
    """What the model found; no evidence and a `stop_reason` other than `final`: it gave up."""

    evidence: list[Evidence]
    unfounded: int
    """Quotes of the model that stand in no document, and are left out."""
    stop_reason: str | None = None
    turns: int
    sub_calls: int
    depth: int
    seconds: float
    void: str | None = None
    """Why the episode was lost, by no fault of the model: ask again."""


class RecursiveModel(PythonModel):
    """Plays all questions of one call at once; calls wait for each other."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy, and the settings it was registered with."""
        self.params = serving.for_documents(
            config.read_resolved(Path(context.artifacts["settings"]))
        )
        self.policy = TransformersPolicy(
            *load_model(context.artifacts["model"]), self.params.serving
        )
        self.open = ExitStack()
        weakref.finalize(self, self.open.close)  # a model that nobody holds leaves no server
        self.url = ""
        self.one_at_a_time = Lock()

    def predict(
        self, context: PythonModelContext | None, model_input: list[Question], params: Any = None
    ) -> list[Answer]:
        """Answer each question."""
        if context is None:  # MLflow tries the example while it logs the model: nothing to serve
            return []
        questions = [self._question(number, asked) for number, asked in enumerate(model_input)]
        with self.one_at_a_time:
            found = self._play(questions)
        titles = [_titles(asked) for asked in model_input]
        return [
            {
                **asdict(answer),
                "evidence": [
                    {
                        "id": quote.document,
                        "title": of_document[quote.document],
                        "start": quote.start,
                        "end": quote.end,
                        "text": quote.text,
                    }
                    for quote in answer.evidence
                ],
            }
            for answer, of_document in zip(found, titles, strict=True)
        ]

    def _question(self, number: int, asked: Question) -> answers.Question:
        names = list(_titles(asked))
        reason = None
        if len(names) < len(asked.documents):
            reason = "two documents have the same id; give each its own"
        else:
            texts = [document.text for document in asked.documents]
            question = answers.Question(
                asked.question, dict(zip(names, texts, strict=True)), asked.seed or 0
            )
            reason = answers.fault(question, self.params.env)
        if reason is not None:
            raise MlflowException(f"question {number + 1}: {reason}", INVALID_PARAMETER_VALUE)
        return question

    def _play(self, questions: list[answers.Question]) -> list[answers.Answer]:
        if not questions:
            return []
        try:
            if not self.url:
                self.url = self.open.enter_context(serving.own_server(self.params))
            return serving.answer(self.policy, self.url, questions, self.params)
        except (EpisodeError, PipelineError) as error:
            self.url = ""
            self.open.close()
            raise MlflowException(
                f"the environment of this model failed: {error}. It is started anew by the next "
                "request: ask again",
                TEMPORARILY_UNAVAILABLE,
            ) from error


def _titles(asked: Question) -> dict[str, str | None]:
    """Title by id, in the order of the documents."""
    return {
        document.id or f"p{place}": document.title
        for place, document in enumerate(asked.documents, 1)
    }


mlflow.models.set_model(RecursiveModel())
