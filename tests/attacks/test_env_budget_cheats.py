"""The budget of a tree in tokens, on real sandboxes, and cheats that gain nothing."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from helpers.trees import Play

from env.server.sandbox import SandboxHost
from env.settings import EnvSettings, LimitSettings

TEXT = "".join(f"Sentence {number:03} of the only paper.\n" for number in range(100))
Start = Callable[..., Play]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    limits = {"observation_chars": 10_000, "max_frames": 64, "max_children": 64}
    with closing(SandboxHost(EnvSettings(limits=LimitSettings(**limits)))) as host:
        yield lambda tokens, **more: Play(host, {"p1": TEXT}, tree_tokens=tokens, **limits | more)


def test_the_root_is_told_its_budget_and_code_reads_what_is_left(start: Start) -> None:
    play = start(500)
    assert play.said(0).endswith("\nbudget: 500 tokens")
    play.code((0, "print(budget_left(), SHOW_VARS())"), tokens=100)
    assert play.said(0) == "400 No variables created yet."
    free = start(None)
    free.code((0, "FINAL(budget_left() == float('inf'))"), tokens=10**6)
    assert free.tree.answer is True


def test_reading_through_many_children_costs_more_than_reading_oneself(start: Start) -> None:
    alone = start(None)
    alone.code((0, "print(context['p1'])"))
    for ask, reader in (
        ("llm_query_batched(parts)", "read"),
        ("rlm_query_batched(['read'] * len(parts), parts)", "```repl\nprint(context)\n```"),
    ):
        split = start(None)
        cut = "t = context['p1']\nparts = [t[n:n + 400] for n in range(0, 4000, 400)]"
        split.code((0, f"{cut}\n{ask}"))
        split.turn(*((n, reader) for n in range(1, 11)))
        assert split.tree.counters.tokens > alone.tree.counters.tokens


def test_handing_text_on_costs_nothing_until_somebody_reads_it(start: Start) -> None:
    """Else a budget would forbid what recursion is for; the process reward knows what was read."""
    play = start(None)
    before = play.tree.counters.tokens
    play.code((0, "r = rlm_query('count', context['p1'])\nprint(len(r))"))
    play.code((1, "FINAL(context * 10)"))
    assert play.tree.counters.tokens < before + 70


def test_output_that_nobody_reads_is_neither_paid_nor_counts_as_read(start: Start) -> None:
    play = start(400)
    play.code((0, "print(context['p1'])\nFINAL('x')"))
    assert play.stops() == ["final"]
    assert play.tree.counters.tokens < 100
    assert TEXT[:400] not in "".join(play.tree.shown)


def test_refused_sub_calls_in_a_loop_cost_no_tokens_and_end(start: Start) -> None:
    play = start(400, max_frames=8)
    before = play.tree.counters.tokens
    play.code((0, "said = {llm_query('x' * 2000) for _ in range(100)}\nprint(len(said), *said)"))
    assert play.tree.counters.frames == 1
    assert play.tree.counters.sub_calls == 100
    assert play.tree.counters.tokens < before + 60
    play.code((0, "while True: llm_query('x' * 2000)"))
    assert play.tree.counters.sub_calls == 32 * 8 + 1
    assert play.tree.counters.tokens < before + 120
    assert play.tree.void is None


def test_code_that_replaces_budget_left_changes_nothing_on_the_server(start: Start) -> None:
    play = start(400)
    lie = "budget_left.__self__._tokens_left = 10**9\nbudget_left = lambda: 10**9"
    play.code((0, f"{lie}\nprint(llm_query('x' * 2000)[:5])"))
    assert play.tree.counters.frames == 1
    play.code((0, "FINAL(budget_left() < 400)"))
    assert play.tree.answer is True
