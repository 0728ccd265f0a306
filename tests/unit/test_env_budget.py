"""The budget of a tree in tokens: how the server counts, refuses and ends, on scripted REPLs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from env.errors import RefusedError
from env.models import FrameTurn, Message
from env.server.sandbox import CellDone, SubCall
from env.server.tree import Tree
from env.server.tree.budget import TURN_TOKENS, TokenBudget, needed, tokens_of
from env.settings import EnvSettings, LimitSettings


class ScriptedRepls:
    """A host whose REPLs return the next events; they note the tokens that are left to each."""

    def __init__(self, *events: CellDone | SubCall) -> None:
        self.events = list(events)
        self.seen: list[int | None] = []
        self.values: list[Any] = []
        self.tokens_left: int | None = None

    def open(self, *_: Any, **__: Any) -> ScriptedRepls:
        return self

    def run(self, code: str) -> CellDone | SubCall:
        self.seen.append(self.tokens_left)
        return self.events.pop(0)

    def resume(self, value: Any) -> CellDone | SubCall:
        self.values.append(value)
        return self.run("")

    def close(self) -> None:
        pass


def tree(*events: CellDone | SubCall, tokens: int | None = None, **limits: Any) -> Tree:
    settings = EnvSettings(limits=LimitSettings(tree_tokens=tokens, **limits))
    return Tree(settings, ScriptedRepls(*events), "Which?", {"p": "x" * 10_000})  # type: ignore[arg-type]


def turn(played: Tree, frame: int = 0, text: str = "```repl\n1\n```", **more: Any) -> None:
    played.views()
    played.play([FrameTurn(frame=frame, text=text, **more)])


def stops(played: Tree) -> list[str | None]:
    return [state.stop_reason for state in played.states()]


def test_each_text_is_counted_once_and_only_when_it_is_read_or_written() -> None:
    played = tree(CellDone("x" * 400), CellDone("", final=1))
    (first,) = played.views()
    read = sum(tokens_of(message.content) for message in first.messages)
    assert played.counters.tokens == read  # not the 10,000 characters of the context
    turn(played, text="```repl\n" + "a" * 40 + "\n```")
    assert played.counters.tokens == read + 13 + 100
    turn(played)
    assert played.counters.tokens == read + 13 + 100 + 4
    assert played.answered


def test_a_claim_counts_where_it_is_above_the_servers_own_count() -> None:
    budget = TokenBudget(None)
    budget.read(0, [Message(role="user", content="x" * 40)])
    budget.write(FrameTurn(frame=0, text="y" * 20, tokens=30))
    assert budget.spent == 30
    budget.read(0, [Message(role="user", content="x" * 40)])
    budget.write(FrameTurn(frame=0, text="y" * 20, tokens=14))
    assert budget.spent == 30 + 15
    budget.write(FrameTurn(frame=1, text="", tokens=7))  # tokens that leave no text
    assert budget.spent == 30 + 15 + 7
    with pytest.raises(ValidationError):
        FrameTurn(frame=0, text="", tokens=-1)


def test_without_a_budget_nothing_ends_and_nothing_is_told() -> None:
    played = tree(*[CellDone("x" * 1000)] * 4, CellDone("", final=1), max_turns=8)
    (first,) = played.views()
    assert "budget" not in "".join(message.content for message in first.messages)
    for _ in range(5):
        turn(played, tokens=10**6)
    assert stops(played) == ["final"]
    assert set(played._repls.seen) == {None}  # type: ignore[attr-defined]


def test_a_budget_that_is_used_up_exactly_is_not_overspent() -> None:
    played = tree(CellDone("", final=1), tokens=300)
    turn(played, tokens=300)
    assert stops(played) == ["final"]
    played = tree(CellDone("", final=1), tokens=300)
    turn(played, tokens=301)
    assert stops(played) == ["overspent"]
    assert not played.answered
    assert played.void is None


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_tree_over_its_budget_ends_all_its_frames_and_plays_no_more_turn(finish: Any) -> None:
    played = tree(SubCall("rlm_query_batched", ["a", "b"], None), tokens=300)
    turn(played)
    played.views()
    played.play([FrameTurn(frame=n, text="x", tokens=1000, finish=finish) for n in (1, 2)])
    assert played.done
    assert stops(played) == ["overspent"] * 3
    assert played.counters.turns == 2


def test_an_observation_over_the_budget_ends_the_tree_unread() -> None:
    played = tree(CellDone("secret " * 1000), tokens=300)
    turn(played)
    assert stops(played) == ["overspent"]
    assert not any(view.messages for view in played.views())
    assert played.shown == []


def test_a_sub_call_that_does_not_fit_costs_nothing_and_is_told_why() -> None:
    call = SubCall("llm_query_batched", ["a", "x" * 1200, "b"], None)
    played = tree(call, CellDone("", final=1), tokens=300)
    turn(played)
    assert played.counters.frames == 3
    spent = played.counters.tokens
    turn(played, frame=1, text="A")
    turn(played, frame=2, text="B")
    assert played.counters.tokens == spent + 2
    ((one, refused, other),) = played._repls.values  # type: ignore[attr-defined]
    assert (one, other) == ("A", "B")
    assert refused.startswith("error: this needs 318 tokens of the budget, and ")
    assert "are left" in refused


def test_a_budget_too_small_for_one_turn_is_refused_with_the_settings_path() -> None:
    enough = needed(tree(tokens=300).views()[0].messages)
    with pytest.raises(RefusedError, match=rf"needs {enough}\. Raise env\.limits\.tree_tokens"):
        tree(tokens=enough - 1)
    assert tree(tokens=enough).counters.tokens == enough - TURN_TOKENS
