"""Problems of the benchmark: eight questions about each context, with one right answer each.

A question whose answer would be a tie gets other parts, and a context on which a kind of question
always ties is drawn again. Answers are a name of a list or a number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from tasks.oolong.contexts import MONTHS, USERS, ChatLine, draw, shown, topics, world
from tasks.oolong.solve import solve

LENGTHS = tuple(1024 * 2**n for n in range(8))
"""Tokens of the contexts by default: 1k to 128k."""
DOCUMENT = "messages"
"""Id of the document with the context."""
_TRIES = 40
"""Draws of a question's parts, after which the context is drawn again."""


@dataclass(frozen=True)
class QuestionKind:
    """Kind of question; the answer is one of `choices`, or a number without them."""

    name: str
    asks: str
    choices: Callable[[], tuple[str, ...]] | None = None

    def pattern(self) -> re.Pattern[str]:
        """Finds this kind of question, with its parts as groups."""
        text = re.sub(r"\{(\w+)\}", r"(?P<\1>[A-Za-z]+)", self.asks.replace("?", r"\?"))
        return re.compile(text)


KINDS = (
    QuestionKind("most", "Which topic is the most frequent?", topics),
    QuestionKind("least", "Which topic is the least frequent?", topics),
    QuestionKind("count", "How many messages are about {a}?"),
    QuestionKind("compare", "Are messages about {a} more or less frequent than messages about {b}?"
                 " Answer with more or less.", lambda: ("more", "less")),
    QuestionKind("user count", "How many messages by {user} are about {a}?"),
    QuestionKind("user topic", "About which topic does {user} write most often?", topics),
    QuestionKind("which user", "Which user wrote the most messages about {a}?", lambda: USERS),
    QuestionKind("which month", "Which month has the most messages about {a}? Answer with the name"
                 " of the month.", lambda: MONTHS),
)  # fmt: skip
BY_NAME: Mapping[str, QuestionKind] = {kind.name: kind for kind in KINDS}
_PATTERNS = {kind.name: kind.pattern() for kind in KINDS}


@dataclass(frozen=True)
class LongProblem:
    """A question about one context."""

    problem_id: str
    length: int
    """Tokens of the context."""
    context_id: str
    """Problems with the same value share their context."""
    kind: str
    parts: dict[str, str]
    gold: str
    lines: list[ChatLine]
    labels: bool
    """Whether the topic is printed beside each message."""
    context: str
    """Text of the context."""

    @property
    def question(self) -> str:
        """Question, with all that is needed to answer it."""
        about = "; ".join(f"{name}: {item['about']}" for name, item in world()["topics"].items())
        columns = "date | user | topic | text" if self.labels else "date | user | text"
        where = (
            "The topic of each message is printed in its line."
            if self.labels
            else "No line names its topic: read each message to know it."
        )
        return (
            f"Each line of the document is one message: {columns}. A message has exactly one of "
            f"these topics ({about}). {where} {BY_NAME[self.kind].asks.format(**self.parts)} "
            "The answer is one word or one number."
        )


def problems(seed: int, length: int, count: int, labels: bool) -> Iterator[LongProblem]:
    """Problems of one length; the same ones for both values of `labels`.

    Args:
        seed: the same seed gives the same problems; a larger `count` only adds some.
        length: tokens of a context.
        count: number of problems, eight for each context.
        labels: print the topic beside each message.
    """
    for number in range(-(-count // len(KINDS))):
        lines, asked = _context(Random(f"oolong/{seed}/{length}/{number}"), length)
        context = shown(lines, labels)
        digest = hashlib.sha256(context.encode()).digest()
        for kind, parts, gold in asked[: count - number * len(KINDS)]:
            about = f"{kind} {sorted(parts.items())} {gold}".encode()
            unique = hashlib.sha256(digest + about).hexdigest()[:8]
            context_id = f"{length}-{number}"
            name = f"{context_id}-{kind.replace(' ', '-')}-{unique}"
            yield LongProblem(name, length, context_id, kind, parts, gold, lines, labels, context)


def read_question(text: str) -> tuple[str, dict[str, str]]:
    """Kind and parts of a question that `LongProblem.question` wrote.

    Raises:
        ValueError: it is not one.
    """
    for name, pattern in _PATTERNS.items():
        if found := pattern.search(text):
            return name, found.groupdict()
    raise ValueError(f"{text[:200]!r} is not a question of the benchmark")


def _context(
    rng: Random, length: int
) -> tuple[list[ChatLine], list[tuple[str, dict[str, str], str]]]:
    """A context, and kind, parts and gold of its questions."""
    while True:
        lines = draw(rng, length)
        rows = [(line.month, line.user, line.topic) for line in lines]
        asked = []
        for kind in KINDS:
            for _ in range(_TRIES):
                first, second = rng.sample(topics(), 2)
                values = {"a": first, "b": second, "user": rng.choice(USERS)}
                parts = {key: values[key] for key in values if f"{{{key}}}" in kind.asks}
                answers = solve(kind.name, rows, parts)
                if len(answers) == 1 and (kind.name != "least" or _all_topics(rows)):
                    asked.append((kind.name, parts, answers[0]))
                    break
        if len(asked) == len(KINDS):
            return lines, asked


def _all_topics(rows: list[tuple[str, str, str]]) -> bool:
    """Whether each topic occurs; a topic that does not would be the least frequent one."""
    return len({row[2] for row in rows}) == len(topics())
