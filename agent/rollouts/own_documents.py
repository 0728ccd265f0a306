"""Questions about a user's own documents, answered by recursive episodes.

The environment receives the documents with the question, if `env.allow_documents` is set. Such
episodes have neither gold nor reward. The answer is located in the documents: each quote has its
position, and text that occurs in no document is left out. Neighbours: `engine.py` plays the
episodes; the registered model and `tasks/asking.py` ask the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from agent.policies.base import Policy
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.client import Sessions
from env.models import RLMObservation
from env.settings import DOCUMENT_CHARS, PROMPT_CHARS, EnvSettings
from rewards.settings import RewardSettings
from rewards.spans import locate


@dataclass(frozen=True)
class Question:
    """A question about the user's own documents."""

    text: str
    documents: Mapping[str, str]
    """Text by id."""
    seed: int = 0
    """Sampling seed; a greedy policy ignores it."""


class Quote(BaseModel):
    """Characters [start, end) of a document."""

    document: str
    start: int
    end: int
    text: str


class Answer(BaseModel):
    """Quotes that an episode found, and its counters. A registered model adds titles."""

    evidence: list[Quote] = Field([], description="by document and position; none overlap")
    unfounded: int = Field(0, description="quotes that occur in no document; they are left out")
    stop_reason: str | None = Field(None, description="only `final` gives an answer")
    turns: int = Field(0, description="0 if no model read anything: ranked passages")
    sub_calls: int = 0
    depth: int = 0
    seconds: float = 0.0
    void: str | None = Field(None, description="why infrastructure lost the episode: ask again")


def question_fault(question: Question, env: EnvSettings) -> str | None:
    """Fault of a question and its fix; None when the question can be asked."""
    if not question.text.strip():
        return "the question is empty; write one"
    if len(question.text) > PROMPT_CHARS:
        return (
            f"the question has {len(question.text)} characters, more than "
            f"{PROMPT_CHARS}. Shorten it."
        )
    if not question.documents:
        return "the question comes without documents. Give at least one."
    texts = {"the question": question.text}
    for name, text in question.documents.items():
        if not text.strip():
            return f"document {name!r} holds no text. Leave it out."
        texts |= {f"the id {name!r}": name, f"document {name!r}": text}
    for what, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can contain lone surrogates, UTF-8 cannot
            return (
                f"{what} holds {text[error.start]!r} at {error.start}, a lone surrogate. Remove it."
            )
    size = sum(map(len, question.documents.values()))
    if size > DOCUMENT_CHARS:
        return (
            f"the documents have {size:,} characters in total, more than {DOCUMENT_CHARS:,}; ask "
            "about fewer."
        )
    return None


def play_questions(
    policy: Policy,
    url: str,
    questions: Sequence[Question],
    rewards: RewardSettings,
    *,
    sessions: int,
    numbered: bool,
    on_turn: Callable[[int], object] | None = None,
) -> list[tuple[Answer, Trajectory]]:
    """Play one episode for each question; returns its answer and its record.

    Args:
        policy: plays every frame.
        url: address of an environment that allows users' documents.
        questions: questions without a `question_fault`.
        rewards: rules of a valid quote.
        sessions: episodes in flight.
        numbered: replace the ids of the documents by p1, p2, ..., as in the synthetic world.
        on_turn: called with the index of a question after each turn of its episode.

    Raises:
        EpisodeError: the environment does not play.
    """
    labels = [
        {f"p{place}" if numbered else name: name for place, name in enumerate(item.documents, 1)}
        for item in questions
    ]
    resets: list[dict[str, Any]] = [
        {
            "question": item.text,
            "papers": {label: item.documents[name] for label, name in names.items()},
        }
        for item, names in zip(questions, labels, strict=True)
    ]
    specs = [EpisodeSpec(str(number), seed=item.seed) for number, item in enumerate(questions)]
    count = min(sessions, len(questions))
    with _OwnDocuments(url, count, resets) as opened:
        played = play(policy, opened, specs, sessions=count, whole_answers=True, on_turn=on_turn)
    return [
        (_answer(episode, reset["papers"], names, rewards), episode)
        for episode, reset, names in zip(played, resets, labels, strict=True)
    ]


class _OwnDocuments(Sessions):
    """Sessions in which the id of a problem is an index of `resets`, the resets' arguments."""

    def __init__(self, url: str, count: int, resets: list[dict[str, Any]]) -> None:
        super().__init__(url, count)
        self._resets = resets

    def reset(self, slot: int, **kwargs: Any) -> Future[RLMObservation]:
        return super().reset(slot, **self._resets[int(kwargs["problem_id"])])


def _answer(
    episode: Trajectory, papers: dict[str, str], names: dict[str, str], rewards: RewardSettings
) -> Answer:
    located = locate(episode.answer if episode.answered else None, papers, rewards)
    spans = located.retrieved
    return Answer(
        evidence=[
            Quote(document=names[label], start=start, end=end, text=text[start:end])
            for label, text in papers.items()
            for start, end in spans.get(label, [])
        ],
        unfounded=located.misses,
        stop_reason=episode.root.stop_reason if episode.frames else None,
        turns=episode.counters.turns,
        sub_calls=episode.counters.sub_calls,
        depth=episode.counters.max_depth,
        seconds=round(episode.seconds, 3),
        void=episode.void,
    )
