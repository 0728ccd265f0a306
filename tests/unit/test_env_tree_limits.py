"""Limits of a tree for its whole episode: texts, time of a step, ranking, tokens."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from helpers.trees import Play, ScriptedRepls
from pydantic import ValidationError

from env.errors import RefusedError, SandboxError
from env.models import FrameTurn, Message
from env.server.sandbox import CellDone, SubCall
from env.server.tree import TEXT_BYTES
from env.server.tree import tree as module
from env.server.tree.budget import TURN_TOKENS, TokenBudget, needed, tokens_of
from env.server.tree.frame import held_bytes
from env.settings import EnvSettings, LimitSettings

WIDE = "\U0001f600"
"""A character that makes each of its text take four bytes."""


def tree(script: Callable[[str], Any], **limits: Any) -> Play:
    def answer(code: str) -> Any:
        return CellDone("resumed") if code == "resumed" else script(code)

    return Play(ScriptedRepls(script=answer), {"p": "text"}, max_depth=1, **limits)


def plays(played: Play, code: str, after: str = "") -> None:
    text = f"```repl\n{code}\n```{after}"
    played.turn(*((frame, text) for frame in played.ready()))


def texts(played: Play) -> Iterator[str]:
    """Every text that the tree keeps."""
    kept: list[Any] = [played.tree.shown]
    for frame in played.tree._frames:
        kept += [frame.context, frame.answer, frame.final_code, frame.final_text, frame.output]
        kept += [frame.calls.values if frame.calls else None]
    while kept:
        value = kept.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            kept += [*value, *value.values()]
        elif isinstance(value, list):
            kept += value


def large(number: int) -> str:
    return f"{number}".ljust(199_999, "x") + WIDE


def test_the_texts_of_an_episode_are_bounded_and_used_up_is_said() -> None:
    count = iter(range(10**6))

    def script(code: str) -> Any:
        if code == "ask":
            return SubCall("rlm_query_batched", ["p"] * 8, [large(next(count)) for _ in range(8)])
        return CellDone("", final=large(next(count)))

    played = tree(script, max_turns=16, max_frames=32)
    for _ in range(4):
        plays(played, "ask")
        while played.statuses()[0] == "waiting":
            plays(played, "answer", after=f"\nFINAL({large(next(count))})")
    kept = {id(text): sys.getsizeof(text) for text in texts(played)}
    assert TEXT_BYTES / 2 < sum(kept.values()) <= TEXT_BYTES
    assert not played.tree.done
    ended = played.stops()[1:]
    assert "budget" in ended or len(ended) < 31
    assert "error: the texts of this episode are used up" in played.repls.values[-1]


def test_a_text_counts_what_it_takes_in_memory() -> None:
    assert held_bytes("x" * 1000) == sys.getsizeof("x" * 1000)
    assert held_bytes(WIDE * 1000) > 4000
    for value in ([[]] * 10_000, {str(n): n for n in range(10_000)}, [{"": []}] * 10_000):
        assert held_bytes(value) >= sum(map(sys.getsizeof, (value, *value)))


LIMIT_S = LimitSettings().cell_cpu_s


CELLS = [
    (CellDone(""), 0, 0),
    *((CellDone("", error=said), 1, 0) for said in ("exception", "syntax", "memory")),
    (CellDone("", error="cpu", cpu_s=LIMIT_S), 1, 1),
    (CellDone("", cpu_s=LIMIT_S), 1, 1),  # a worker that says nothing of it
]


@pytest.mark.parametrize(("cell", "reported", "seen"), CELLS)
def test_the_reward_counts_only_errors_that_the_server_saw(cell, reported, seen):
    played = tree(lambda code: cell)
    plays(played, "one", after="\nFINAL_VAR(two)")  # two cells of one turn
    assert (played.tree.counters.errors, played.tree.failed_turns) == (reported, seen)
    played.turn((0, "no block"))
    assert (played.tree.counters.errors, played.tree.failed_turns) == (reported + 1, seen + 1)


def test_one_step_that_takes_longer_than_cells_may_is_void(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def script(code: str) -> Any:
        if code == "ask":
            return SubCall("rlm_query_batched", ["p"] * 8, None)
        now[0] += 70.0
        return CellDone("", final=1) if code == "slow" else CellDone("printed")

    played = tree(script)
    plays(played, "long")
    plays(played, "ask")
    now[0] += 1000.0  # neither the policy's time nor that of earlier steps counts
    plays(played, "slow")
    assert now[0] == 70.0 + 1000.0 + 6 * 70.0
    assert played.tree.void == module.BUSY
    assert played.stops() == ["error", *["final"] * 6, "timeout", "error"]


def test_a_step_that_is_stopped_ends_at_its_next_cell() -> None:
    cells = []

    def script(code: str) -> Any:
        cells.append(code)
        if code == "ask":
            return SubCall("rlm_query_batched", ["p"] * 8, None)
        played.tree.stop()  # another thread, during this cell
        return CellDone("printed")

    played = tree(script)
    plays(played, "ask")
    with pytest.raises(SandboxError, match="closed"):
        plays(played, "slow")
    assert cells == ["ask", "slow"]
    assert played.repls.closed == 1


class Alphabet:
    """An embedder that orders texts by the alphabet, each of which costs one."""

    def order(self, question: str, texts: Sequence[str], spend: Callable[[int], None]) -> list[int]:
        for _ in texts:
            spend(1)
        return sorted(range(len(texts)), key=lambda place: texts[place])


def ranks(monkeypatch: pytest.MonkeyPatch, *calls: list[str], rank: str = "minilm") -> Any:
    """A tree whose root makes these calls of `rank`, and what the last one returned."""
    monkeypatch.setattr(module.embedding, "embedder", Alphabet)
    waiting = list(calls)
    played = tree(lambda code: SubCall("rank", waiting.pop(0), None))
    played.tree._settings = EnvSettings.model_validate({"rank": rank})
    for _ in calls:
        plays(played, "rank(context)")
    return played.tree, played.repls.values[-1]


def test_an_episode_ranks_a_bounded_number_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKED", 9)
    monkeypatch.setattr(module, "CALL_TOKENS", 1)
    three = ["Which?", "b", "c", "a"]
    played, returned = ranks(monkeypatch, three, three)
    assert returned == [2, 0, 1]
    assert (played.counters.sub_calls, played.counters.frames) == (0, 1)
    assert "at most 9 tokens" in ranks(monkeypatch, three, three, three)[1]
    calls = [["Which?", "b"]] * 4
    assert ranks(monkeypatch, *calls)[1] == [0]
    assert "at most 9" in ranks(monkeypatch, *calls, ["Which?", "b"])[1]


def test_only_honest_calls_of_rank_reach_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "at most" in ranks(monkeypatch, ["Which?", "b"], rank="bm25")[1]
    assert "at most" in ranks(monkeypatch, ["Which?"])[1]
    assert "at most" in ranks(monkeypatch, ["Which?", *["b"] * 2049])[1]
    assert ranks(monkeypatch, ["Which?", *["b"] * 2048])[1] == [*range(2048)]


def test_a_client_that_leaves_ends_a_long_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.embedding, "embedder", lambda: pytest.fail("it ranks on"))

    def script(code: str) -> Any:
        played.tree.stop()
        return SubCall("rank", ["Which?", "b"], None)

    played = tree(script)
    played.tree._settings = EnvSettings(rank="minilm")
    with pytest.raises(SandboxError):
        plays(played, "rank(context)")


# --- the budget in tokens: how the server counts, refuses and ends


def budgeted(*events: CellDone | SubCall, tokens: int | None = None) -> Play:
    return Play(ScriptedRepls(*events), {"p": "x" * 10_000}, tree_tokens=tokens)


def test_each_text_is_counted_once_and_only_when_it_is_read_or_written() -> None:
    played = budgeted(CellDone("x" * 400), CellDone("", final=1))
    read = sum(tokens_of(message.content) for message in played.views[0].messages)
    assert played.tree.counters.tokens == read  # not the 10,000 characters of the context
    played.code((0, "a" * 40))
    assert played.tree.counters.tokens == read + 13 + 100
    played.code((0, "1"))
    assert played.tree.counters.tokens == read + 13 + 100 + 4
    assert played.tree.answered


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


def test_a_budget_that_is_used_up_exactly_is_not_overspent() -> None:
    for tokens, reason in ((300, "final"), (301, "overspent")):
        played = budgeted(CellDone("", final=1), tokens=300)
        played.code((0, "1"), tokens=tokens)
        assert (played.stops(), played.tree.void) == ([reason], None)


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_tree_over_its_budget_ends_all_its_frames_and_plays_no_more_turn(finish: Any) -> None:
    played = budgeted(SubCall("rlm_query_batched", ["a", "b"], None), tokens=300)
    played.code((0, "1"))
    played.turn((1, "x"), (2, "x"), tokens=1000, finish=finish)
    assert played.stops() == ["overspent"] * 3
    assert played.tree.counters.turns == 2


def test_an_observation_over_the_budget_ends_the_tree_unread() -> None:
    played = budgeted(CellDone("secret " * 1000), tokens=300)
    played.code((0, "1"))
    assert played.stops() == ["overspent"]
    assert (played.views[0].messages, played.tree.shown) == ([], [])


def test_a_sub_call_that_does_not_fit_costs_nothing_and_is_told_why() -> None:
    call = SubCall("llm_query_batched", ["a", "x" * 1200, "b"], None)
    played = budgeted(call, CellDone("", final=1), tokens=300)
    played.code((0, "1"))
    assert played.tree.counters.frames == 3
    spent = played.tree.counters.tokens
    played.turn((1, "A"), (2, "B"))
    assert played.tree.counters.tokens == spent + 2
    ((one, refused, other),) = played.repls.values
    assert (one, other) == ("A", "B")
    assert refused.startswith("error: this needs 318 tokens of the budget, and ")
    assert "are left" in refused


def test_a_budget_too_small_for_one_turn_is_refused_with_the_settings_path() -> None:
    enough = needed(budgeted(tokens=300).views[0].messages)
    with pytest.raises(RefusedError, match=rf"needs {enough}\. Raise env\.limits\.tree_tokens"):
        budgeted(tokens=enough - 1)
    assert budgeted(tokens=enough).tree.counters.tokens == enough - TURN_TOKENS
