"""Scripted policy that knows the gold of its problems and shows how to find it.

Its episodes teach a model the form of the work on any source of problems. A root searches for words
of the question and gives promising papers to children. A child prints passages and quotes verbatim
what answers the task. With the keyed plan, the root ranks passages instead and readers name those
that answer. In problems with candidates, readers choose among numbered sentences. Gold
decides where it looks and what it quotes, but it writes no gold that the frame was not shown.

A share of the episodes has a slip and its repair: a misspelt variable, or a quote that is not
verbatim. `Demonstrator.mistakes` names these turns, which are not taught. Neighbours:
`reading_plan.py`, `cells.py`, `tokenised.py` (its turns as token ids).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from agent.demonstrations import cells, keyed_plan
from agent.demonstrations import reading_plan as plan
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.scripted import block
from env.problems.schema import Fact, Problem, Span
from env.settings import EnvSettings
from rewards.settings import RewardSettings

Mistake = tuple[int, int, int]
"""(episode number, frame number, turn) of a turn that is wrong on purpose."""
SlipKind = Literal["find", "ask", "look", "quote"]
"""Turn of the slip: the root's search or its sub-calls, or a child's look or quotes."""

_TASKS = {
    "full": "Quote verbatim every passage of this paper that helps to answer: {question}",
    "compact": "Quote: {question}",
}
_READER_TASKS = {
    "full": "Reply with the numbers of the lines that answer the question, or none: {question}",
    "compact": "{question} Numbers:",
}
_THOUGHTS = {
    "find": "I search all papers for the rarest words of the question.",
    "ask": "I give the promising papers to children, and answer with what they quote.",
    "ask_all": "The search does not single out papers, so children read all of them.",
    "sentences": "I count the sentences that the question may be about.",
    "readers": "Only a reader can choose among them, so readers get a few each.",
    "keyed": "I rank the passages, and answer with those that readers choose.",
    "look": "I look at the passages around the words of the task.",
    "page": "The passages do not answer the task, so I read the paper from its beginning.",
    "next_page": "I read on.",
    "quote": "These passages answer the task, so I quote them.",
    "nothing": "Nothing in this paper answers the task.",
    "misspelt": "I misspelt a variable.",
    "inexact": "I copy the passages again, character by character.",
}
"""Sentence before a block, with `full` prompts."""
_MARGIN = 400
"""Characters that two pages share, so that a passage is whole on one of them."""
_LEAST_PART = 40
"""Characters that the root prints of each paper, at least."""
_READER_LINES = 4
"""Sentences of a reader, if one call may have so many readers."""
_LEAST_WORDS = 6
"""Words of a quote from which a slip can leave one out."""


@dataclass
class _Tree:
    """An episode."""

    problem: Problem
    rng: Random
    slip: SlipKind | None
    waiting: deque[str] = field(default_factory=deque)
    """Papers whose children have not played yet, in the order of the sub-calls."""
    replies: dict[str, str] = field(default_factory=dict)
    """Replies of the keyed plan's readers, by prompt."""


@dataclass
class _Node:
    """A frame."""

    task: str
    paper: str = ""
    """Id of the paper that a child was given."""
    shown: list[str] = field(default_factory=list)
    """Observations so far."""
    turns: int = 0
    pages: int = 0
    """Characters that were printed page by page."""
    repair: str | None = None
    """Next turn, after a slip."""


class Demonstrator:
    """Policy that shows how to find the gold of its problems.

    Args:
        problems: the problems that will be played, with their gold.
        env: prompt style, limits, and the window of `search`.
        look_chars: most characters that a cell prints, below `env.limits.observation_chars`.
        slips: share of the episodes with a slip.
        seed: seed of the slips, and of papers that are read in vain.
        keyed: sizes of the keyed plan; None for children that search and quote.
        rewards: what counts as a quote.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        env: EnvSettings,
        *,
        look_chars: int | None = None,
        slips: float = 0.0,
        seed: int = 0,
        keyed: keyed_plan.Keyed | None = None,
        rewards: RewardSettings | None = None,
    ) -> None:
        self._problems = {problem.problem_id: problem for problem in problems}
        self._env = env
        self._keyed = keyed
        self._rewards = rewards or RewardSettings()
        most = env.limits.observation_chars
        self._chars = _rounded(min(most, look_chars or most) - 1)  # print adds a line break
        self._slips, self._seed = slips, seed
        self._trees: dict[int, _Tree] = {}
        self._nodes: dict[FrameKey, _Node] = {}
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
        for key in keys:
            self._nodes.pop(key, None)
            if key[1] == 0:
                self._trees.pop(key[0], None)

    def _play(self, request: TurnRequest) -> str:
        episode, frame = request.key
        if request.first:
            self._open(request)
        else:
            self._nodes[request.key].shown += [item.content for item in request.messages]
        tree, node = self._trees[episode], self._nodes[request.key]
        if request.kind == "llm":
            return self._read(tree, node)
        if node.repair is not None:
            text, node.repair = node.repair, None
        elif frame:
            text = self._child(tree, node)
        else:
            text = self._root(tree, node)
        if node.repair is not None:
            self.mistakes.add((episode, frame, node.turns))
        node.turns += 1
        return text

    def _open(self, request: TurnRequest) -> None:
        """Begin a frame, and with a root its episode."""
        episode, frame = request.key
        if frame == 0:
            assert request.problem is not None
            problem = self._problems[request.problem.problem_id]
            rng = Random(f"{self._seed}/{episode}/{problem.problem_id}")
            kinds: list[SlipKind] = ["find", "ask"]
            if self._keyed and not problem.candidates:
                kinds = ["ask"]
            elif not problem.candidates:
                kinds += ["look", "quote", "quote"]
            slip = rng.choice(kinds) if rng.random() < self._slips else None
            self._trees[episode] = _Tree(problem, rng, slip)
        tree, task = self._trees[episode], request.messages[-1].content
        node = self._nodes[request.key] = _Node(
            task if request.kind == "llm" else task.rpartition("\ncontext: ")[0]
        )
        if frame and request.kind == "rlm":
            node.paper = tree.waiting.popleft()

    # --- turns

    def _root(self, tree: _Tree, node: _Node) -> str:
        """Search in the first turn, make sub-calls in the second; both at once, if keyed.

        A keyed root without readers prints passages in the first turn and answers in the second.
        """
        problem, most = tree.problem, self._env.limits.max_children
        style = self._env.prompt_style
        if problem.candidates:
            if node.turns == 0:
                word = plan.shared_word(problem) or ""
                return self._cell(tree, node, "find", "sentences", cells.find_sentences(word))
            size = max(_READER_LINES, -(-len(problem.candidates) // most))
            task = _READER_TASKS[style].format(question=problem.question)
            return self._cell(tree, node, "ask", "readers", cells.ask_readers(task, size))
        if self._keyed:
            args = (problem, self._keyed, self._env, self._rewards)
            if node.turns:
                return self._say("quote", keyed_plan.own_choice(*args, "".join(node.shown)))
            tree.replies = keyed_plan.replies(*args)
            code = keyed_plan.code(problem.question, self._keyed, style, most)
            return self._cell(tree, node, "ask", "keyed", code)
        words = plan.search_words(problem)
        if node.turns == 0:
            count = len(set().union(*(plan.papers_with(word, problem.texts) for word in words)))
            chars = max(_LEAST_PART, _rounded(self._chars // max(1, count) - _LEAST_PART))
            return self._cell(tree, node, "find", "find", cells.find_papers(words, chars))
        papers = plan.papers_to_read(problem, words, extra=tree.rng.randrange(2))
        task = _TASKS[style].format(question=problem.question)
        # A paper that is too long for a child opens no frame.
        room = self._env.limits.child_context_chars
        tree.waiting = deque(p for p in papers or problem.texts if len(problem.texts[p]) <= room)
        thought = "ask_all" if papers is None else "ask"
        return self._cell(tree, node, "ask", thought, cells.ask_children(task, papers, most))

    def _child(self, tree: _Tree, node: _Node) -> str:
        """Look at passages until all gold of the paper was shown, then quote it."""
        problem = tree.problem
        text, facts = problem.texts[node.paper], plan.gold_in(problem, node.paper)
        missing = plan.unseen(facts, node.shown)
        another = node.turns + 1 < self._env.limits.max_turns and node.pages < len(text)
        if another and (missing or not node.shown):
            return self._look(tree, node, text, missing)
        spans = [s for fact in facts for s in fact.spans if plan.is_shown(s, node.shown)]
        return self._quote(tree, node, text, spans)

    def _look(self, tree: _Tree, node: _Node, text: str, missing: Sequence[Fact]) -> str:
        frame_text = "\n".join([node.task, *node.shown])
        words = plan.look_words(text, missing, frame_text, self._env.search_window, self._chars)
        if words is None and not missing:
            words = plan.rarest_words(text, node.task)
        if words:
            return self._cell(tree, node, "look", "look", cells.look(words, self._chars))
        thought = "next_page" if node.pages else "page"
        code = cells.page(node.pages, self._chars)
        node.pages += max(self._chars // 2, self._chars - _MARGIN)
        return self._cell(tree, node, "look", thought, code)

    def _quote(self, tree: _Tree, node: _Node, text: str, spans: Sequence[Span]) -> str:
        quotes = list(dict.fromkeys(_expression(span, text) for span in spans))
        right = self._say("quote" if quotes else "nothing", cells.quote(quotes))
        if tree.slip != "quote":
            return right
        for span in spans:
            words = span.text.split(" ")
            inexact = " ".join([*words[: len(words) // 2], *words[len(words) // 2 + 1 :]])
            if len(words) >= _LEAST_WORDS and inexact not in text:
                wrong = list(quotes)
                wrong[quotes.index(_expression(span, text))] = cells.text_literal(inexact)
                tree.slip = None
                node.repair = self._say("inexact", cells.quote(quotes))
                return self._say("quote", cells.quote(wrong))
        return right

    def _read(self, tree: _Tree, node: _Node) -> str:
        """Numbers of the passages or lines of a reader's prompt that are gold."""
        if tree.replies:
            return tree.replies.get(node.task, keyed_plan.NONE)
        gold = {span.text for fact in tree.problem.evidence for span in fact.spans}
        lines = (line.partition(" ") for line in node.task.split("\n"))
        return " ".join(number for number, _, text in lines if text in gold) or "none"

    def _cell(self, tree: _Tree, node: _Node, kind: SlipKind, thought: str, code: str) -> str:
        """A turn with this code, or with a slip that the next turn repairs."""
        if tree.slip == kind and (wrong := cells.misspelt(code)):
            tree.slip = None
            node.repair = self._say("misspelt", code)
            return self._say(thought, wrong)
        return self._say(thought, code)

    def _say(self, thought: str, code: str) -> str:
        if self._env.prompt_style == "compact":
            return block(code)
        return f"{_THOUGHTS[thought]}\n{block(code)}"


def _rounded(chars: int) -> int:
    """A number that a person would write, at most `chars`."""
    return chars // 100 * 100 if chars >= 200 else chars // 10 * 10


def _expression(span: Span, text: str) -> str:
    """Python expression of a span's quote."""
    edge = plan.edges(span, text)
    return cells.text_literal(span.text) if edge is None else cells.extracted(span.text, edge)
