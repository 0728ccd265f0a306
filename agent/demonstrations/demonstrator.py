"""Scripted policy that knows the gold of its problems and shows how to find it.

Its episodes teach a model the form of the work on any source of problems. The root ranks passages,
and readers say which answer (`keyed_plan.py`). In problems with candidates, readers choose
among numbered sentences. Gold decides what they name, but no frame writes gold that it wasn't
shown.

A share of the episodes has a slip and its repair: a misspelt variable. `Demonstrator.mistakes`
names these turns, which are not taught. Neighbours: `cells.py` (code as text), `sft_rows.py` (its
turns as token ids).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from agent.demonstrations import cells, keyed_plan
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from env.problems.fields import read_question
from env.problems.schema import Problem
from env.prompts import block
from env.settings import EnvSettings
from rewards.settings import RewardSettings

Mistake = tuple[int, int, int]
"""(episode number, frame number, turn) of a turn that is wrong on purpose."""
SlipKind = Literal["find", "ask"]
"""Turn of the slip: the root's search, or its sub-calls."""

_READER_TASKS = {
    "full": "Reply with the numbers of the lines that answer the question, or none: {question}",
    "compact": "{question} Numbers:",
}
_THOUGHTS = {
    "sentences": "I count the sentences that the question may be about.",
    "readers": "Only a reader can choose among them, so readers get a few each.",
    "keyed": "I rank the passages, and answer with those that readers choose.",
    "misspelt": "I misspelt a variable.",
}
"""Sentence before a block, with `full` prompts."""
_READER_LINES = 4
"""Sentences of a reader, if one call may have so many readers."""


@dataclass
class _Tree:
    """An episode."""

    problem: Problem
    slip: SlipKind | None
    turns: int = 0
    """Turns of the root so far."""
    repair: str | None = None
    """Next turn of the root, after a slip."""
    replies: dict[str, str] = field(default_factory=dict)
    """Replies of the keyed plan's readers, by prompt."""


class Demonstrator:
    """Policy that shows how to find the gold of its problems.

    Args:
        problems: the problems that will be played, with their gold.
        env: prompt style, limits, and the ranking.
        slips: share of the episodes with a slip.
        seed: seed of the slips.
        near_chars: of the keyed plan (`keyed_plan.code`).
        rewards: what counts as a quote.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        env: EnvSettings,
        *,
        slips: float = 0.0,
        seed: int = 0,
        near_chars: int | None = None,
        rewards: RewardSettings | None = None,
    ) -> None:
        self._problems = {problem.problem_id: problem for problem in problems}
        self._env = env
        self._near_chars = near_chars
        self._rewards = rewards or RewardSettings()
        self._slips, self._seed = slips, seed
        self._trees: dict[int, _Tree] = {}
        self.mistakes: set[Mistake] = set()
        """Turns that are wrong on purpose."""

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request.

        Raises:
            KeyError: a problem is not one of `problems`.
        """
        return [TurnReply(text=self._play(request)) for request in requests]

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        for episode in (episode for episode, frame in keys if frame == 0):
            self._trees.pop(episode, None)

    def _play(self, request: TurnRequest) -> str:
        episode, frame = request.key
        if request.kind == "llm":
            return self._read(self._trees[episode], request.messages[-1].content)
        if request.first:
            self._open(request)
        tree = self._trees[episode]
        if tree.repair is not None:
            text, tree.repair = tree.repair, None
        else:
            text = self._root(tree)
        if tree.repair is not None:
            self.mistakes.add((episode, frame, tree.turns))
        tree.turns += 1
        return text

    def _open(self, request: TurnRequest) -> None:
        """Begin an episode and its root."""
        assert request.problem is not None
        problem = self._problems[request.problem.problem_id]
        rng = Random(f"{self._seed}/{request.key[0]}/{problem.problem_id}")
        kinds: list[SlipKind] = ["find", "ask"] if problem.candidates else ["ask"]
        slip = rng.choice(kinds) if rng.random() < self._slips else None
        self._trees[request.key[0]] = _Tree(problem, slip)

    # --- turns

    def _root(self, tree: _Tree) -> str:
        """Search in the first turn, make sub-calls in the second; both at once, if keyed."""
        problem, most = tree.problem, self._env.limits.max_children
        style = self._env.prompt_style
        if problem.candidates:
            if tree.turns == 0:
                method, _ = read_question(problem.question)
                return self._cell(tree, "find", "sentences", cells.find_sentences(method))
            size = max(_READER_LINES, -(-len(problem.candidates) // most))
            task = _READER_TASKS[style].format(question=problem.question)
            return self._cell(tree, "ask", "readers", cells.ask_readers(task, size))
        tree.replies = keyed_plan.replies(problem, self._env, self._rewards)
        code = keyed_plan.code(problem.question, self._near_chars, style, most)
        return self._cell(tree, "ask", "keyed", code)

    def _read(self, tree: _Tree, prompt: str) -> str:
        """Numbers of the passages or lines of a reader's prompt that are gold."""
        if tree.replies:
            return tree.replies.get(prompt, keyed_plan.YES_OR_NO[0])
        gold = {span.text for fact in tree.problem.evidence for span in fact.spans}
        lines = (line.partition(" ") for line in prompt.split("\n"))
        return " ".join(number for number, _, text in lines if text in gold) or "none"

    def _cell(self, tree: _Tree, kind: SlipKind, thought: str, code: str) -> str:
        """A turn with this code, or with a slip that the next turn repairs."""
        if tree.slip == kind and (wrong := cells.misspelt(code)):
            tree.slip = None
            tree.repair = self._say("misspelt", code)
            return self._say(thought, wrong)
        return self._say(thought, code)

    def _say(self, thought: str, code: str) -> str:
        if self._env.prompt_style == "compact":
            return block(code)
        return f"{_THOUGHTS[thought]}\n{block(code)}"
