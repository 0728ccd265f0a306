"""Demonstrations: how a root has its sentences read, and what readers answer.

A root searches its method and counts the sentences. Then it

- calls readers,
- calls children that call readers,
- prints pages of sentences and reads them itself,
- prints the names of the benchmarks alone and reads those,
- writes names of the field from memory,
- or answers without reading.

A reader repeats the name of each benchmark and says its field, which is knowledge and not text.
Decisions are drawn separately, so that good ones are frequent alone and rare together.

Sentences are written here and not taken from problems: they hold no untaught name. Strangers are
names of no lexicon. A reader says that it does not know them, or guesses any field.

A sampling policy makes mistakes that no demonstration contains, and continues from an unseen state.
So the examples contain two kinds of mistakes, and neither has a loss: a turn that is not valid
Python, with the environment's error, before the correct turn (`with_slip`), and single wrong tokens
within a turn (`examples.noisy`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeVar

from agent.nano.tokenizer import Conversation
from env import prompts
from env.problems.fields import HITS, QUESTIONS
from env.problems.lexicon import FIELDS, lexicon, untaught
from env.problems.names import COMMON, FACTS, SCORES
from env.prompts import block
from env.settings import EnvSettings, LimitSettings

_T = TypeVar("_T")
_LIMITS = LimitSettings()
"""Compact prompts name no limit. `observation_chars` cuts what is printed."""

PlanKind = Literal["readers", "children", "pages", "names", "recite", "unread"]
"""Reader of the sentences: readers, children with readers, the root in pages or by names alone.

With `recite` the root writes names of the field from memory, with `unread` it guesses.
"""
Kept = Literal["field", "all", "first"]
"""Sentences of an answer: those of the field, all, or the first."""

# Shares of the decisions. All good choices together are rare, so the base model is mediocre. Each
# good choice alone is frequent, so that sampling finds it.
PLANS: dict[PlanKind, float] = {
    "readers": 0.5,
    "children": 0.15,
    "pages": 0.15,
    "names": 0.05,
    "recite": 0.03,
    "unread": 0.12,
}
SIZES = {1: 0.15, 2: 0.15, 4: 0.35, 8: 0.25, 24: 0.1}
"""Of the sentences of a reader's call."""
PAGES = {8: 0.2, 12: 0.5, 24: 0.3}
"""Of the sentences of a page."""
MOST: dict[int | None, float] = {8: 0.64, 16: 0.04, None: 0.32}
"""Of the sentences that are looked at; None for all."""
KEPT: dict[Kept, float] = {"field": 0.8, "all": 0.12, "first": 0.08}
FORGETFUL = 0.3
"""Pages whose turns do not show the earlier ones."""
BUDGETED = 0.2
"""Questions that name a budget of tokens."""

UNKNOWN = "unknown"
"""Word of a reader for a field that it does not know."""
_HONEST = 0.6
"""Share of the strangers that are answered with this word."""
_BUDGETS = (300, 6000)
"""Tokens of the budgets that questions name; no root here uses them up."""
_SEARCH = 's = sum(search(context, "{method}").values(), [])\nprint(len(s))'
_READERS = """\
p = ["\\n".join(s[k:k+{size}]) for k in range(0, len(s), {size})]
r = " ".join(llm_query_batched(p)).split()
"""
_CHILDREN = """\
p = list(context.values())
FINAL(rlm_query_batched(["{method} on {field}"] * len(p), p))"""
_PAGE = 'print("\\n".join(q[:{size}]), len(q[{size}:]))\nq = q[{size}:]'
_NAMES = 'print(*sorted({w.strip(".,") for t in s for w in t.split() if w[3:4] == "a"}))'

_CODE = re.compile(r"```repl\n(.*)\n```", re.DOTALL)
_PIECE = re.compile(r"\w+|\W")
_TRIES = 8


def pick(rng: Random, shares: Mapping[_T, float]) -> _T:
    """Draw a key by its share."""
    return rng.choices(list(shares), weights=list(shares.values()))[0]


@dataclass(frozen=True)
class ReadingPlan:
    """Decisions of a root."""

    kind: PlanKind
    size: int
    """Sentences of a reader's call or of a page."""
    most: int | None
    """Most sentences that are looked at; None for all."""
    keep: Kept
    budget: int | None = None
    """Tokens of the tree, as the question names them."""


BEST = ReadingPlan("readers", 4, None, "field")


def draw_plan(rng: Random) -> ReadingPlan:
    """Draw a root's decisions."""
    most = pick(rng, MOST)
    kind = pick(rng, PLANS)
    return ReadingPlan(
        kind=kind,
        size=pick(rng, PAGES if kind == "pages" else SIZES),
        most=most,
        keep=pick(rng, KEPT),
        budget=rng.randrange(*_BUDGETS) if rng.random() < BUDGETED else None,
    )


def forgetful(talk: Conversation) -> list[Conversation]:
    """Each turn of a root's conversation, without the turns before it."""
    system, first, *turns = talk
    asked = [first["content"]] + [f"{first['content']}\n\n{m['content']}" for m in turns[1::2]]
    return [
        [system, {**first, "content": content}, turn]
        for content, turn in zip(asked, turns[::2], strict=True)
    ]


class ReadingTalks:
    """Conversations about sentences with the taught names of a lexicon.

    Args:
        size: names of the lexicon.
        others: names of no lexicon, which are shown as often.
    """

    def __init__(self, size: int, others: Sequence[str] = ()) -> None:
        self.fields = lexicon(size)
        self.taught = sorted(set(self.fields) - untaught(size))
        self.shown = [*self.taught, *others]

    def answer(self, rng: Random, benchmarks: Sequence[str]) -> str:
        """Answer of a reader: right where it knows the name."""
        fields = (self.fields.get(name) or _guess(rng) for name in benchmarks)
        return "".join(f"{name} {field} " for name, field in zip(benchmarks, fields, strict=True))

    def sentences(self, rng: Random, method: str, count: int) -> list[tuple[str, str]]:
        """Benchmarks and sentences about a method, with random wordings and scores."""
        benchmarks = rng.sample(self.shown, count)
        return [
            (name, rng.choice(FACTS).format(x=method, y=name, n=rng.choice(SCORES)))
            for name in benchmarks
        ]

    def reader(self, rng: Random, method: str, count: int) -> Conversation:
        """Conversation of a reader of `count` sentences."""
        hits = self.sentences(rng, method, count)
        opening = prompts.llm_messages("compact", "\n".join(text for _, text in hits))
        answer = self.answer(rng, [name for name, _ in hits])
        return [*(m.model_dump() for m in opening), _written(answer)]

    def child(self, method: str, field: str, keep: Kept) -> Conversation:
        """Conversation of a child that has one paper read."""
        opening = prompts.child_messages(EnvSettings(), f"{method} on {field}", "")
        asked = 'r = llm_query("\\n".join(s)).split()\n' if keep == "field" else ""
        code = f's = search(context, "{method}")\n{asked}{_ending(keep, field)}'
        return [*(m.model_dump() for m in opening), _written(block(code))]

    def root(
        self, rng: Random, plan: ReadingPlan, method: str, field: str, papers: int
    ) -> Conversation:
        """Conversation of a root."""
        question = rng.choice(QUESTIONS).format(x=method, f=field)
        limits = _LIMITS.model_copy(update={"tree_tokens": plan.budget})
        opening = prompts.root_messages(EnvSettings(limits=limits), question, papers)
        count = HITS * papers
        talk = [
            *(m.model_dump() for m in opening),
            _written(block(_SEARCH.format(method=method))),
            _printed(str(count), ["s"]),
        ]
        first = "" if plan.most is None else f"s = s[:{plan.most}]\n"
        if plan.kind == "unread":
            guess = f'FINAL([t for t in s if "{field}" in t])'
            ending = guess if plan.keep == "field" else _ending(plan.keep, field)
            return [*talk, _written(block(ending))]
        if plan.kind == "children":
            return [*talk, _written(block(_CHILDREN.format(method=method, field=field)))]
        ending = _ending(plan.keep, field)
        if plan.kind == "readers":
            return [*talk, _written(block(first + _READERS.format(size=plan.size) + ending))]
        if plan.kind == "recite":
            listed = [name for name in self.taught if self.fields[name] == field]
            literal = f'"{" ".join(listed)}".split()'
            return [*talk, _written(block(f"FINAL([t for t in s for n in {literal} if n in t])"))]
        hits = self.sentences(rng, method, min(count, plan.most or count))
        if plan.kind == "names":
            printed = sorted(name for name, _ in hits)
            talk += [_written(block(first + _NAMES)), _printed(" ".join(printed), [])]
            code = f'r = "{self.answer(rng, printed)}".split()\n'
            return [*talk, _written(block(code + ending))]
        code, new = f"{first}q, r = s, []\n", ["q", "r"]
        for at in range(0, len(hits), plan.size):
            page, left = hits[at : at + plan.size], max(0, len(hits) - at - plan.size)
            text = "\n".join(sentence for _, sentence in page)
            whole = text[: _LIMITS.observation_chars]
            page = [(name, sentence) for name, sentence in page if sentence in whole]
            talk += [
                _written(block(code + _PAGE.format(size=plan.size))),
                _printed(f"{text} {left}", new),
            ]
            code, new = f'r += "{self.answer(rng, [name for name, _ in page])}".split()\n', []
        return [*talk, _written(block(code + ending))]


def _guess(rng: Random) -> str:
    """Answer about a stranger."""
    return UNKNOWN if rng.random() < _HONEST else rng.choice(FIELDS)


def _ending(keep: Kept, field: str) -> str:
    """Code that answers with some of the sentences `s`, by the readers' words `r`."""
    fitting = f'FINAL([t for t in s for n, f in zip(r, r[1:]) if f == "{field}" and n in t])'
    return {"field": fitting, "all": "FINAL(s)", "first": "FINAL(s[:1])"}[keep]


def _written(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _printed(text: str, new: Sequence[str]) -> dict[str, str]:
    limit = _LIMITS.observation_chars
    cut = max(0, len(text) + 1 - limit)  # print adds a line break
    return {"role": "user", "content": prompts.cell_message(text[:limit], cut, new, "", _LIMITS)}


def with_slip(conversation: Conversation, rng: Random) -> tuple[Conversation, int | None]:
    """Insert a broken attempt before one of the turns.

    Returns:
        The longer conversation and the index of the broken message. If no attempt is broken, the
        conversation itself and None.
    """
    at = rng.choice([i for i, message in enumerate(conversation) if message["role"] == "assistant"])
    for _ in range(_TRIES):
        broken = _break(conversation[at]["content"], rng)
        error = _error(broken)
        if error is not None:
            attempt = {"role": "assistant", "content": broken}
            answer = {"role": "user", "content": error}
            return [*conversation[:at], attempt, answer, *conversation[at:]], at
    return conversation, None


def _break(text: str, rng: Random) -> str:
    """Drop or double a few pieces of a turn, or replace them by names or earlier pieces."""
    match = _CODE.search(text)
    pieces = _PIECE.findall(match.group(1) if match else text)
    start = rng.randrange(len(pieces))
    end = min(len(pieces), start + rng.randint(1, 8))
    instead = rng.choice(
        [
            [],
            pieces[start:end] * 2,
            [rng.choice(COMMON) for _ in range(rng.randint(1, 4))],
            pieces[max(0, start - 6) : start],
        ]
    )
    return block("".join([*pieces[:start], *instead, *pieces[end:]]))


def _error(text: str) -> str | None:
    """The environment's error for a turn that is not valid Python; None for a valid one."""
    match = _CODE.fullmatch(text)
    if match is None:
        return prompts.blocks_message(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(match.group(1), "<cell>", "exec")
    except SyntaxError as error:
        return prompts.syntax_message(f"SyntaxError: {error.msg}")
    return None
