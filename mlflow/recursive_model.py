"""The registered model: questions and papers in, answers with their course out.

A models-from-code file, loaded by its path (nothing in this folder is importable). It plays whole
recursive episodes: the policy is the merged model, the REPLs are those of an environment server
that is started on this machine at the first prediction and ends with the process.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlflow
from mlflow.pyfunc import PythonModel, PythonModelContext
from pydantic import BaseModel

from agent.models import TransformersPolicy, load_model
from agent.rollout import EpisodeSpec, play
from env.client import Sessions
from env.models import RLMAction, RLMObservation
from tasks import config
from tasks.deploy import local_server


class Question(BaseModel):
    """One question about one's own papers."""

    question: str
    papers: dict[str, str]
    """Text by paper id."""


class OwnPapers(Sessions):
    """Sessions whose episode number i plays the i-th question; the last observations are kept."""

    def __init__(self, url: str, questions: list[Question], count: int) -> None:
        super().__init__(url, count)
        self.questions = questions
        self.playing: dict[int, int] = {}
        """Question by slot."""
        self.last: dict[int, Future[RLMObservation]] = {}
        """The newest observation of each question; at the end it holds the answer."""

    def reset(self, slot: int, **kwargs: Any) -> Future[RLMObservation]:
        """Begin the slot's question; the id that the rollout engine names is its number."""
        self.playing[slot] = int(kwargs["problem_id"])
        asked = self.questions[self.playing[slot]]
        return super().reset(slot, question=asked.question, papers=asked.papers)

    def step(self, slot: int, action: RLMAction) -> Future[RLMObservation]:
        """One step; its observation is kept."""
        observed = super().step(slot, action)
        self.last[self.playing[slot]] = observed
        return observed


class RecursiveModel(PythonModel):
    """Plays greedily, all questions of one call at once."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy, and the settings it was evaluated with."""
        params = config.read_resolved(Path(context.artifacts["settings"]))
        env = params.env.model_copy(update={"allow_documents": True})
        self.params = params.model_copy(update={"env": env})
        generation = params.evaluate.generation.model_copy(update={"temperature": 0.0})
        self.policy = TransformersPolicy(*load_model(context.artifacts["model"]), generation)
        self.url = ""
        self.open = ExitStack()

    def predict(self, context: PythonModelContext, model_input: list[Question]) -> list[dict]:
        """Answer each question.

        Returns:
            For each: `answer` (what the root gave to FINAL, None without one), `stop_reason`,
            `turns`, `sub_calls`, `seconds`, and `void` (why an episode was lost, else None).
        """
        if not self.url:
            self.url = self.open.enter_context(local_server(self.params, data=None))
        count = min(len(model_input), self.params.evaluate.generation.batch_frames)
        specs = [EpisodeSpec(problem_id=str(number)) for number in range(len(model_input))]
        with OwnPapers(self.url, model_input, count) as sessions:
            played = play(self.policy, sessions, specs, sessions=count)
            answers = [
                None if episode.void else sessions.last[number].result().answer
                for number, episode in enumerate(played)
            ]
        return [
            {
                "answer": answer,
                "stop_reason": episode.root.stop_reason if episode.frames else None,
                "turns": episode.counters.turns,
                "sub_calls": episode.counters.sub_calls,
                "seconds": round(episode.seconds, 3),
                "void": episode.void,
            }
            for episode, answer in zip(played, answers, strict=True)
        ]


mlflow.models.set_model(RecursiveModel())
