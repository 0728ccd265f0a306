"""Strategies of the demonstrations: decisions of root and child, and the code that they become.

Decisions are independent, so a policy that has seen each of them can combine the best ones, which
few demonstrations do. Neighbours: `demonstrations.py` plays these programs, `probe.py` tests the
names in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from agent.nano.settings import Keep, MixtureSettings, Prompted

_T = TypeVar("_T")


def block(code: str) -> str:
    """A turn with this code."""
    return f"```repl\n{code}\n```"


@dataclass(frozen=True)
class RootPlan:
    """Decisions of a root."""

    keyword_first: bool
    """Search the question's first name; otherwise the second."""
    filter_papers: bool
    """Keep only papers that also contain the other name."""
    papers: int
    """Most papers given to children."""
    prompt: Prompted
    """Names in a child's prompt."""
    merge_all: bool
    """Answer with all children's sentences; otherwise with the first child's."""
    final_var: bool = False
    """End with FINAL_VAR instead of FINAL."""
    alone: Keep | None = None
    """Lines that a root without children keeps; None for a root with children."""


@dataclass(frozen=True)
class ChildPlan:
    """Decisions of a child."""

    keyword_first: bool
    """Search the prompt's first name; otherwise the last."""
    keep: Keep


BEST_ROOT = RootPlan(True, True, 8, "both", True)
BEST_CHILD = ChildPlan(True, "other")


def pick(rng: Random, shares: Mapping[_T, float]) -> _T:
    """Draw a key by its share."""
    return rng.choices(list(shares), weights=list(shares.values()))[0]


def draw_root(rng: Random, mixture: MixtureSettings) -> RootPlan:
    """Draw a root's decisions."""
    plan = RootPlan(
        keyword_first=rng.random() < mixture.keyword_first,
        filter_papers=rng.random() < mixture.filter_papers,
        papers=int(pick(rng, mixture.papers)),
        prompt=pick(rng, mixture.prompt),
        merge_all=rng.random() < mixture.merge_all,
        final_var=rng.random() < mixture.final_var,
    )
    # A share of 0 draws no number, so that the other draws stay the same.
    if not mixture.alone or rng.random() >= mixture.alone:
        return plan
    keep: Keep = pick(rng, mixture.child)
    return replace(plan, alone=keep)


def draw_child(rng: Random, mixture: MixtureSettings, names: int) -> ChildPlan:
    """Draw a child's decisions; with a single name in its prompt it cannot filter."""
    shares = dict(mixture.child)
    if names == 1:
        shares["none"] = shares.get("none", 0.0) + shares.pop("other", 0.0)
    return ChildPlan(
        keyword_first=names == 1 or rng.random() < mixture.keyword_first,
        keep=pick(rng, shares),
    )


def in_order(plan: RootPlan | ChildPlan, names: Sequence[str]) -> tuple[str, str]:
    """(keyword, other name) of a question or prompt, which are equal if it has one name."""
    first, last = names[0], names[-1]
    return (first, last) if plan.keyword_first else (last, first)


def child_names(names: Prompted, x: str, y: str) -> tuple[str, ...]:
    """Names in a child's prompt, which joins them with " on "."""
    return {"both": (x, y), "first": (x,), "second": (y,)}[names]


def root_search(plan: RootPlan, x: str, y: str) -> str:
    """First turn of a root."""
    keyword, _ = in_order(plan, (x, y))
    return block(f'h = search(context, "{keyword}")\nprint(len(h))')


def root_ask(plan: RootPlan, x: str, y: str) -> str:
    """Second turn of a root."""
    keyword, other = in_order(plan, (x, y))
    papers = f'[i for i in h if "{other}" in context[i]]' if plan.filter_papers else "list(h)"
    if plan.alone:
        return block(f"p = {papers}[:{plan.papers}]\n{_read_alone(plan.alone, keyword, other)}")
    prompt = " on ".join(child_names(plan.prompt, x, y))
    return block(
        f"p = {papers}[:{plan.papers}]\n"
        f'r = rlm_query_batched(["{prompt}"] * len(p), [context[i] for i in p])\n'
        f"{_ending(plan)}"
    )


def _read_alone(keep: Keep, keyword: str, other: str) -> str:
    """Code that does a child's work for all papers in the root."""
    if keep == "whole":
        return "FINAL([context[i] for i in p])"
    hits = f'[x for i in p for x in search(context[i], "{keyword}")]'
    return f"s = {hits}\nFINAL({_kept(keep, other)})"


def _ending(plan: RootPlan) -> str:
    """Code that returns `r`, the list of the children's answers."""
    if not plan.final_var:
        return f"FINAL({'r' if plan.merge_all else 'r[0]'})"
    return 'FINAL_VAR("r")' if plan.merge_all else 'r = r[0]\nFINAL_VAR("r")'


def child_turn(plan: ChildPlan, names: Sequence[str]) -> str:
    """The only turn of a child; `names` are those in its prompt."""
    if plan.keep == "whole":
        return block("FINAL(context)")
    keyword, other = in_order(plan, names)
    return block(f's = search(context, "{keyword}")\nFINAL({_kept(plan.keep, other)})')


def _kept(keep: Keep, other: str) -> str:
    """Expression for the hits `s` that are kept."""
    return {"other": f'[x for x in s if "{other}" in x]', "none": "s", "one": "s[:1]"}[keep]
