"""What the demonstrations write: every decision of root and child, and the code it becomes.

Decisions are independent of each other, so that a policy which has seen each of them can
combine the best ones, though hardly any demonstration does. Neighbours: `demonstrations.py`
plays these programs, `probe.py` asks for the names in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from agent.nano.settings import Keep, MixtureSettings, Told

_T = TypeVar("_T")


def block(code: str) -> str:
    """Code as a turn."""
    return f"```repl\n{code}\n```"


@dataclass(frozen=True)
class RootPlan:
    """What a root decides."""

    keyword_first: bool
    """Search the question's first name, else its second."""
    filter_papers: bool
    """Keep only papers that hold the other name too."""
    papers: int
    """Papers handed to children, at most."""
    prompt: Told
    """Which names a child is told."""
    merge_all: bool
    """Answer with every child's sentences, else with the first child's."""
    final_var: bool = False
    """End by naming the variable that holds the answer."""
    alone: Keep | None = None
    """What it keeps of its papers' hits when it asks no child; None: it asks children."""


@dataclass(frozen=True)
class ChildPlan:
    """What a child decides."""

    keyword_first: bool
    """Search the prompt's first name, else its second (a prompt of one name has no second)."""
    keep: Keep


BEST_ROOT = RootPlan(True, True, 8, "both", True)
BEST_CHILD = ChildPlan(True, "other")


def pick(rng: Random, shares: Mapping[_T, float]) -> _T:
    """One of the keys, by its share."""
    return rng.choices(list(shares), weights=list(shares.values()))[0]


def draw_root(rng: Random, mixture: MixtureSettings) -> RootPlan:
    """A root's decisions."""
    plan = RootPlan(
        keyword_first=rng.random() < mixture.keyword_first,
        filter_papers=rng.random() < mixture.filter_papers,
        papers=int(pick(rng, mixture.papers)),
        prompt=pick(rng, mixture.prompt),
        merge_all=rng.random() < mixture.merge_all,
        final_var=rng.random() < mixture.final_var,
    )
    # No draw where the share is 0: everything else then falls as it did without it.
    if not mixture.alone or rng.random() >= mixture.alone:
        return plan
    keep: Keep = pick(rng, mixture.child)
    return replace(plan, alone=keep)


def draw_child(rng: Random, mixture: MixtureSettings, names: int) -> ChildPlan:
    """A child's decisions; one that knows a single name has none to filter by."""
    shares = dict(mixture.child)
    if names == 1:
        shares["none"] = shares.get("none", 0.0) + shares.pop("other", 0.0)
    return ChildPlan(
        keyword_first=names == 1 or rng.random() < mixture.keyword_first,
        keep=pick(rng, shares),
    )


def told(names: Told, x: str, y: str) -> tuple[str, ...]:
    """The names that a child is told; its prompt joins them by " on "."""
    return {"both": (x, y), "first": (x,), "second": (y,)}[names]


def root_search(plan: RootPlan, x: str, y: str) -> str:
    """A root's first turn."""
    keyword = x if plan.keyword_first else y
    return block(f'h = search(context, "{keyword}")\nprint(len(h))')


def root_ask(plan: RootPlan, x: str, y: str) -> str:
    """A root's second turn."""
    keyword, other = (x, y) if plan.keyword_first else (y, x)
    papers = f'[i for i in h if "{other}" in context[i]]' if plan.filter_papers else "list(h)"
    if plan.alone:
        return block(f"p = {papers}[:{plan.papers}]\n{_read_alone(plan.alone, keyword, other)}")
    prompt = " on ".join(told(plan.prompt, x, y))
    return block(
        f"p = {papers}[:{plan.papers}]\n"
        f'r = rlm_query_batched(["{prompt}"] * len(p), [context[i] for i in p])\n'
        f"{_ending(plan)}"
    )


def _read_alone(keep: Keep, keyword: str, other: str) -> str:
    """What a child would do with each paper, done by the root for all of them."""
    if keep == "whole":
        return "FINAL([context[i] for i in p])"
    hits = f'[x for i in p for x in search(context[i], "{keyword}")]'
    return f"s = {hits}\nFINAL({_kept(keep, other)})"


def _ending(plan: RootPlan) -> str:
    """How a root hands in `r`, the list of its children's answers."""
    if not plan.final_var:
        return f"FINAL({'r' if plan.merge_all else 'r[0]'})"
    return 'FINAL_VAR("r")' if plan.merge_all else 'r = r[0]\nFINAL_VAR("r")'


def child_turn(plan: ChildPlan, names: Sequence[str]) -> str:
    """A child's only turn; `names` are those of its prompt."""
    if plan.keep == "whole":
        return block("FINAL(context)")
    keyword, other = (names[0], names[-1]) if plan.keyword_first else (names[-1], names[0])
    return block(f's = search(context, "{keyword}")\nFINAL({_kept(plan.keep, other)})')


def _kept(keep: Keep, other: str) -> str:
    """What is kept of the hits `s`, as an expression."""
    return {"other": f'[x for x in s if "{other}" in x]', "none": "s", "one": "s[:1]"}[keep]
