"""Cheats against the budget of a tree in tokens, on real sandboxes; none gains anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from env.models import FrameTurn
from env.server.sandbox import SandboxHost
from env.server.tree import Tree
from env.settings import EnvSettings, LimitSettings

TEXT = "".join(f"Sentence {number:03} of the only paper.\n" for number in range(100))
Start = Callable[..., Tree]


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    opened = SandboxHost(EnvSettings(limits=LimitSettings(observation_chars=10_000)))
    yield opened
    opened.close()


@pytest.fixture
def start(host: SandboxHost) -> Iterator[Start]:
    trees: list[Tree] = []

    def begin(tokens: int | None, **limits: Any) -> Tree:
        limits = {"observation_chars": 10_000, "max_frames": 64, "max_children": 64, **limits}
        settings = EnvSettings(limits=LimitSettings(tree_tokens=tokens, **limits))
        trees.append(Tree(settings, host, "Which?", {"p1": TEXT}))
        return trees[-1]

    yield begin
    for tree in trees:
        tree.close()


def code(tree: Tree, cell: str, *frames: int, tokens: int = 0) -> None:
    tree.views()
    text = f"```repl\n{cell}\n```"
    tree.play([FrameTurn(frame=frame, text=text, tokens=tokens) for frame in frames or (0,)])


def stops(tree: Tree) -> set[str | None]:
    return {state.stop_reason for state in tree.states()}


def test_reading_through_many_children_costs_more_than_reading_oneself(start: Start) -> None:
    alone = start(None)
    code(alone, "print(context['p1'])")
    for ask, reader in (
        ("llm_query_batched(parts)", "read"),
        ("rlm_query_batched(['read'] * len(parts), parts)", "```repl\nprint(context)\n```"),
    ):
        split = start(None)
        cut = "t = context['p1']\nparts = [t[n:n + 400] for n in range(0, 4000, 400)]"
        code(split, f"{cut}\n{ask}")
        split.views()
        split.play([FrameTurn(frame=n, text=reader) for n in range(1, 11)])
        assert split.counters.tokens > alone.counters.tokens


def test_handing_text_on_costs_nothing_until_somebody_reads_it(start: Start) -> None:
    """Else a budget would forbid what recursion is for; the process reward knows what was read."""
    tree = start(None)
    before = tree.counters.tokens
    code(tree, "r = rlm_query('count', context['p1'])\nprint(len(r))")
    code(tree, "FINAL(context * 10)", 1)
    assert tree.counters.tokens < before + 70


def test_output_that_nobody_reads_is_neither_paid_nor_counts_as_read(start: Start) -> None:
    tree = start(400)
    code(tree, "print(context['p1'])\nFINAL('x')")
    assert stops(tree) == {"final"}
    assert tree.counters.tokens < 100
    assert TEXT[:400] not in "".join(tree.shown)


def test_refused_sub_calls_in_a_loop_cost_no_tokens_and_end(start: Start) -> None:
    tree = start(400, max_frames=8)
    before = tree.counters.tokens
    code(tree, "said = {llm_query('x' * 2000) for _ in range(100)}\nprint(len(said), *said)")
    assert tree.counters.frames == 1
    assert tree.counters.sub_calls == 100
    assert tree.counters.tokens < before + 60
    code(tree, "while True: llm_query('x' * 2000)")
    assert tree.counters.sub_calls == 32 * 8 + 1
    assert tree.counters.tokens < before + 120
    assert tree.void is None


def test_code_that_replaces_budget_left_changes_nothing_on_the_server(start: Start) -> None:
    tree = start(400)
    code(
        tree,
        "budget_left.__self__._tokens_left = 10**9\nbudget_left = lambda: 10**9\n"
        "print(llm_query('x' * 2000)[:5])",
    )
    assert tree.counters.frames == 1
    code(tree, "FINAL(budget_left() < 400)")
    assert tree.answer is True
