"""Policies without a model, for tests and measurements of the environment.

`oracle` gets the problems with their gold. `keyword` searches for words, and `random_code` plays at
random. Experts and cheats are in `benchmarks/exploits`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agent.policies.base import FrameKey, TurnReply, TurnRequest
from env.models import Message
from env.problems.schema import Problem
from env.prompts import block


@dataclass(frozen=True)
class Seen:
    """Input of a script: a frame's opening and the current request."""

    request: TurnRequest
    opening: Sequence[Message]
    """The frame's first messages."""
    turn: int
    """Number of turns that this frame has played."""

    @property
    def task(self) -> str:
        """The question of a root, the prompt of a child."""
        return self.opening[-1].content.partition("\ncontext: ")[0]


Script = Callable[[Seen], str]


class Scripted:
    """Policy that is a function of each frame's input.

    Args:
        script: returns the text of a frame's next turn.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._frames: dict[FrameKey, tuple[list[Message], int]] = {}

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request."""
        return [TurnReply(text=self._next(request)) for request in requests]

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        for key in keys:
            self._frames.pop(key, None)

    def _next(self, request: TurnRequest) -> str:
        opening, turn = self._frames.get(request.key, (request.messages, 0))
        if request.first:
            opening, turn = request.messages, 0
        self._frames[request.key] = opening, turn + 1
        return self._script(Seen(request, opening, turn))


def oracle(problems: Iterable[Problem]) -> Scripted:
    """Give each gold paper to a child, which quotes its gold.

    The prompts contain the gold of problems with candidates, whose reward counts what frames see.

    Args:
        problems: the problems to play, with their gold.
    """
    gold: dict[str, Mapping[str, list[str]]] = {}
    prompts: dict[str, Mapping[str, str]] = {}
    for problem in problems:
        by_paper: dict[str, list[str]] = {}
        for fact in problem.evidence:
            by_paper.setdefault(fact.spans[0].paper_id, []).append(fact.spans[0].text)
        gold[problem.problem_id] = by_paper
        prompts[problem.problem_id] = {
            paper_id: "\n".join([f"Quote {paper_id}", *(texts if problem.candidates else ())])
            for paper_id, texts in by_paper.items()
        }

    def script(seen: Seen) -> str:
        assert seen.request.problem is not None
        if seen.request.depth:
            paper_id = seen.task.partition("\n")[0].removeprefix("Quote ")
            return block(f"FINAL({gold[seen.request.problem.problem_id][paper_id]!r})")
        return block(
            f"p = {prompts[seen.request.problem.problem_id]!r}\n"
            "r = []\n"
            "for k in range(0, len(p), 8):\n"
            "    some = list(p)[k:k + 8]\n"
            "    r += rlm_query_batched([p[i] for i in some], [context[i] for i in some])\n"
            "FINAL([{'paper_id': i, 'text': t} for i, ts in zip(p, r) for t in ts])"
        )

    return Scripted(script)


KEYWORD = """\
import math, re
def words(text):
    found = re.findall(r"[^\\W_]+", text.lower())
    return [w[:-1] if len(w) > 3 and w[-1] == "s" and w[-2] != "s" else w for w in found]
lines = []
for i, text in (context.items() if isinstance(context, dict) else [("", context)]):
    for line in text.split("\\n"):
        lines += [(i, s) for s in re.split(r"(?<=[.?!])\\s+(?=[A-Z0-9])", line) if len(s) >= 12]
bags = [words(s) for i, s in lines]
mean = sum(map(len, bags)) / len(bags)
holding = {}
for bag in bags:
    for w in set(bag):
        holding[w] = holding.get(w, 0) + 1
asked = set(words(question)) & set(holding)
weight = {w: math.log(1 + (len(bags) - holding[w] + 0.5) / (holding[w] + 0.5)) for w in asked}
scores = []
for bag in bags:
    short = 2.2 / (1 + 1.2 * (0.25 + 0.75 * len(bag) / mean))
    scores.append(short * sum(weight[w] for w in asked & set(bag)))
least = max(0.7 * max(scores), 0.01)
best = sorted((i for i, s in enumerate(scores) if s >= least), key=lambda i: -scores[i])[:8]
FINAL([lines[i][1] for i in best])"""
"""Keyword search over the sentences of `context` for the words of `question`."""


def keyword() -> Scripted:
    """Answer with the sentences that match the question's words; without children or gold.

    The weights are those of Okapi's BM25 with the usual constants, but a word counts once per
    sentence. The threshold and the number of sentences were tuned on validation problems.
    """
    return Scripted(lambda seen: block(f"question = {seen.task!r}\n{KEYWORD}"))


def random_code() -> Scripted:
    """Random turns: chatter, half a block, a print, or a random line as the answer."""

    def script(seen: Seen) -> str:
        rng = Random(seen.request.seed)
        n = rng.randrange(100)
        text = "context if isinstance(context, str) else context[list(context)[0]]"
        return rng.choice(
            [
                "I do not know.",
                f"```repl\nx = {n}",
                block(f"print({n})"),
                block(f"print(undefined_{n})"),
                block(f"t = ({text}).split('\\n')\nFINAL(t[{n} % len(t)])"),
            ]
        )

    return Scripted(script)
