"""Scripted policy that plays drawn moves: roots and children search, readers know the gold.

`moves.py` draws the code of each frame that searches, without a look at the problem's gold. Only
readers are taught by gold: yes to a passage that is evidence, no to any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from agent.demonstrations.demonstrator import Mistake
from agent.demonstrations.moves import YES_OR_NO, code, draw, passage_of, question_parts
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.scripted import block
from agent.settings import MovesSettings
from env.problems.schema import Problem
from rewards.numbered import holds_gold


class MoveDemonstrator:
    """Policy that draws its moves.

    Args:
        problems: the problems that will be played, with their gold.
        settings: what moves are drawn from.
        min_cover: share of a fact that a passage must cover, if it isn't inside it.
        seed: seed of the draws; those of an episode don't depend on other episodes.
    """

    def __init__(
        self, problems: Iterable[Problem], settings: MovesSettings, min_cover: float, seed: int
    ) -> None:
        self._problems = {problem.problem_id: problem for problem in problems}
        self._settings, self._min_cover, self._seed = settings, min_cover, seed
        self._played: dict[int, Problem] = {}
        self.mistakes: set[Mistake] = set()
        """Turns that are wrong on purpose: none."""

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request.

        Raises:
            KeyError: a problem is not one of `problems`.
        """
        return [TurnReply(text=self._play(request)) for request in requests]

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        for episode, frame in keys:
            if frame == 0:
                self._played.pop(episode, None)

    def _play(self, request: TurnRequest) -> str:
        episode, frame = request.key
        if frame == 0 and request.problem is not None:
            self._played[episode] = self._problems[request.problem.problem_id]
        problem = self._played[episode]
        if request.kind == "llm":
            passage = passage_of(request.messages[-1].content, problem.question)
            return YES_OR_NO[self._is_gold(problem, passage)]
        parts = question_parts(problem.question, self._settings.question)
        if parts is None:  # `fault` has refused it
            raise KeyError(problem.problem_id)
        rng = Random(f"{self._seed}/{problem.problem_id}/{episode}/{frame}")
        move = draw(rng, self._settings, depth=min(frame, 1))
        return block(code(move, parts))

    def _is_gold(self, problem: Problem, passage: str) -> bool:
        spans = (span for fact in problem.evidence for span in fact.spans)
        return any(
            holds_gold(passage, problem.texts[s.paper_id], s.start, s.end, self._min_cover)
            for s in spans
        )


def fault(problem: Problem, settings: MovesSettings) -> str | None:
    """Reason why no move can be shown for a problem; None if one can."""
    if question_parts(problem.question, settings.question) is None:
        return "its question doesn't have the form of warmstart.sft.moves.question"
    return None
