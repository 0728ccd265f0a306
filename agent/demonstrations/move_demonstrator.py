"""Scripted policy that plays drawn moves: roots and children search, readers know the gold.

`moves.py` draws the code of each frame that searches, without a look at the problem's gold. Only
readers are taught by gold: yes to a passage that is evidence, no to any other. The passages that
drawn queries find are evidence too seldom to learn to read, so `lessons` adds others.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from agent.demonstrations.demonstrator import Mistake
from agent.demonstrations.keyed_plan import YES_OR_NO
from agent.demonstrations.moves import code, draw, parts_of, passage_of, query_of, reader_prompt
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.settings import MovesSettings
from env.passages import passages
from env.problems.schema import Problem
from env.prompts import block
from env.ranking import rank
from env.settings import EnvSettings
from rewards.numbered import holds_gold
from rewards.settings import RewardSettings


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
        for episode in (episode for episode, frame in keys if frame == 0):
            self._played.pop(episode, None)

    def _play(self, request: TurnRequest) -> str:
        episode, frame = request.key
        if frame == 0 and request.problem is not None:
            self._played[episode] = self._problems[request.problem.problem_id]
        problem = self._played[episode]
        if request.kind == "llm":
            passage = passage_of(request.messages[-1].content, problem.question)
            return YES_OR_NO[_is_gold(problem, passage, self._min_cover)]
        rng = Random(f"{self._seed}/{problem.problem_id}/{episode}/{frame}")
        return block(code(draw(rng, self._settings, depth=min(frame, 1)), self._settings.question))


def _is_gold(problem: Problem, passage: str, cover: float) -> bool:
    spans = (span for fact in problem.evidence for span in fact.spans)
    return any(holds_gold(passage, problem.texts[s.paper_id], s.start, s.end, cover) for s in spans)


def lessons(
    problems: Iterable[Problem], settings: MovesSettings, env: EnvSettings, rewards: RewardSettings
) -> Iterator[tuple[str, str]]:
    """Prompts of readers with their right replies: evidence, and others of its paper that are hard.

    Hard are those that a drawn query ranks first, and those most like the evidence. A
    query and its evidence don't meet in a root's code, so roots learn nothing. None if
    `lesson_passages` is 0.
    """
    chars, least = env.passage_chars, rewards.min_span_chars
    for problem in problems if settings.lesson_passages else ():
        parts = parts_of(problem.question, settings.question)
        texts = {paper_id: problem.texts[paper_id] for paper_id in sorted(problem.gold_papers)}
        whole = "\n".join(texts.values())
        gold = sorted(
            passage
            for passage in set(passages(whole, chars, least))
            if _is_gold(problem, passage, rewards.min_cover)
        )
        if not parts or not gold:
            continue
        rng = Random(f"{problem.problem_id}/lesson")
        many = settings.lesson_passages
        drawn, alike = (
            rank(texts, query, many, chars=chars, least=least)
            for query in (query_of(draw(rng, settings), parts), " ".join(gold))
        )
        others = dict.fromkeys(passage for _, passage in [*drawn[: many // 2], *alike])
        hard = [passage for passage in others if passage not in gold]
        for passage in [*gold, *hard[: max(0, many - len(gold))]]:
            yield reader_prompt(problem.question, passage), YES_OR_NO[passage in gold]


def demonstration_fault(problem: Problem, settings: MovesSettings) -> str | None:
    """Reason why no move can be shown for a problem; None if one can."""
    if parts_of(problem.question, settings.question) is None:
        return "its question doesn't have the form of warmstart.sft.moves.question"
    return None
