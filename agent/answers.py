"""Questions about documents of one's own, answered by whole recursive episodes.

The documents go to the environment with the question, which must allow that; there is no gold and
no reward. What the policy answers is looked up in the documents, so that every quote comes with
its place, and one that stands nowhere is no quote. Neighbours: `agent/rollout.py` plays, the
registered model and `flows/ask.py` use this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agent.policy import Policy
from agent.rollout import EpisodeSpec, play
from agent.trajectory import Trajectory
from env.client import Sessions
from env.models import RLMObservation
from env.settings import EnvSettings
from rewards.settings import RewardSettings
from rewards.spans import locate


@dataclass(frozen=True)
class Question:
    """One question about one's own documents."""

    text: str
    documents: Mapping[str, str]
    """Text by id."""
    seed: int = 0
    """Of the sampling; a greedy policy has no use for it."""


@dataclass(frozen=True)
class Quote:
    """Characters [start, end) of a document."""

    document: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Answer:
    """What one episode found, and what it took."""

    evidence: list[Quote] = field(default_factory=list)
    """By document in the order given, then by place; overlapping quotes are one."""
    unfounded: int = 0
    """Quotes of the answer that stand in no document; they are left out."""
    stop_reason: str | None = None
    """Why the root ended; only `final` gave an answer."""
    turns: int = 0
    sub_calls: int = 0
    depth: int = 0
    seconds: float = 0.0
    void: str | None = None
    """Why the episode was lost to infrastructure, else None."""


def fault(question: Question, env: EnvSettings) -> str | None:
    """What is wrong with a question, and how to mend it; None when it can be asked."""
    if not question.text.strip():
        return "the question is empty; write one"
    if len(question.text) > env.limits.prompt_chars:
        return (
            f"the question has {len(question.text)} characters, more than "
            f"{env.limits.prompt_chars} (env.limits.prompt_chars); shorten it"
        )
    if not question.documents:
        return "there are no documents; give at least one"
    for name, text in question.documents.items():
        if not text.strip():
            return f"document {name!r} holds no text; leave it out"
    texts = {"the question": question.text}
    for name, text in question.documents.items():
        texts |= {f"the id {name!r}": name, f"document {name!r}": text}
    for what, text in texts.items():
        if (place := _lone_surrogate(text)) is not None:
            return f"{what} holds {text[place]!r} at {place}, which is no character; leave it out"
    size = sum(map(len, question.documents.values()))
    if size > env.document_chars:
        return (
            f"the documents have {size:,} characters in all, more than {env.document_chars:,} "
            "(env.document_chars); ask about fewer"
        )
    return None


def _lone_surrogate(text: str) -> int | None:
    """Where one is: JSON can name it, UTF-8 cannot carry it to the environment."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def answer(
    policy: Policy,
    url: str,
    questions: Sequence[Question],
    rewards: RewardSettings,
    *,
    sessions: int,
    numbered: bool,
) -> list[Answer]:
    """Play one episode for each question.

    Args:
        policy: plays every frame.
        url: an environment that allows documents of one's own.
        questions: without a `fault`.
        rewards: what counts as a quote.
        sessions: episodes in flight at once.
        numbered: the policy reads ids p1, p2, ..., as in the synthetic world, and not those of
            the documents.

    Raises:
        EpisodeError: the environment plays nothing.
    """
    labels = [
        {f"p{place}" if numbered else name: name for place, name in enumerate(asked.documents, 1)}
        for asked in questions
    ]
    shown = [
        {label: asked.documents[name] for label, name in names.items()}
        for asked, names in zip(questions, labels, strict=True)
    ]
    specs = [EpisodeSpec(str(number), seed=asked.seed) for number, asked in enumerate(questions)]
    count = min(sessions, len(questions))
    with _OwnDocuments(url, count, [asked.text for asked in questions], shown) as opened:
        played = play(policy, opened, specs, sessions=count)
    return [
        _answer(episode, papers, names, rewards)
        for episode, papers, names in zip(played, shown, labels, strict=True)
    ]


class _OwnDocuments(Sessions):
    """Sessions in which the problem named `7` is the seventh question."""

    def __init__(
        self, url: str, count: int, questions: list[str], papers: list[dict[str, str]]
    ) -> None:
        super().__init__(url, count)
        self._questions = questions
        self._papers = papers

    def reset(self, slot: int, **kwargs: Any) -> Future[RLMObservation]:
        number = int(kwargs["problem_id"])
        return super().reset(slot, question=self._questions[number], papers=self._papers[number])


def _answer(
    episode: Trajectory, papers: dict[str, str], names: dict[str, str], rewards: RewardSettings
) -> Answer:
    located = locate(episode.answer if episode.answered else None, papers, rewards)
    found = located.retrieved
    return Answer(
        evidence=[
            Quote(names[label], start, end, text[start:end])
            for label, text in papers.items()
            for start, end in found.get(label, [])
        ],
        unfounded=located.misses,
        stop_reason=episode.root.stop_reason if episode.frames else None,
        turns=episode.counters.turns,
        sub_calls=episode.counters.sub_calls,
        depth=episode.counters.max_depth,
        seconds=round(episode.seconds, 3),
        void=episode.void,
    )
