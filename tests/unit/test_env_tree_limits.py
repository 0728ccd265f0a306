"""Limits of a tree that hold for its whole episode: texts that it keeps, and time of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from env.errors import SandboxError
from env.models import FrameTurn
from env.server.sandbox import CellDone, SubCall
from env.server.tree import TEXT_BYTES, Tree
from env.server.tree import tree as module
from env.server.tree.frame import held_bytes
from env.settings import EnvSettings, LimitSettings

WIDE = "\U0001f600"
"""A character that makes each of its text take four bytes."""


class Repls:
    """A host whose REPLs answer code by the script of the test."""

    def __init__(self, script: Callable[[str], Any]) -> None:
        self.script = script
        self.closed = 0

    def open(self, *_: Any, **__: Any) -> Repls:
        return self

    def run(self, code: str) -> Any:
        return self.script(code.strip())

    def resume(self, value: Any) -> Any:
        self.resumed = value
        return CellDone("resumed")

    def close(self) -> None:
        self.closed += 1


def tree(script: Callable[[str], Any], **limits: Any) -> Tree:
    settings = EnvSettings(limits=LimitSettings(max_depth=1, **limits))
    return Tree(settings, Repls(script), "Which?", {"p": "text"})  # type: ignore[arg-type]


def plays(played: Tree, code: str, after: str = "") -> None:
    ready = [view.frame for view in played.views() if view.status == "ready"]
    text = f"```repl\n{code}\n```{after}"
    played.play([FrameTurn(frame=frame, text=text) for frame in ready])


def texts(played: Tree) -> Iterator[str]:
    """Every text that the tree keeps."""
    kept: list[Any] = [played.shown]
    for frame in played._frames:
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
    numbers = iter(range(10**6))

    def script(code: str) -> Any:
        if code == "ask":
            return SubCall(
                "rlm_query_batched", ["p"] * 8, [large(next(numbers)) for _ in "12345678"]
            )
        return CellDone("", final=large(next(numbers)))

    played = tree(script, max_turns=16, max_frames=32)
    for _ in range(4):
        plays(played, "ask")
        while len(played.states()) > 1 and played.states()[0].status == "waiting":
            plays(played, "answer", after=f"\nFINAL({large(next(numbers))})")
    kept = {id(text): sys.getsizeof(text) for text in texts(played)}
    assert TEXT_BYTES / 2 < sum(kept.values()) <= TEXT_BYTES
    assert not played.done
    ended = [(state.frame, state.stop_reason) for state in played.states()[1:]]
    assert ("budget" in dict(ended).values()) or len(ended) < 31
    assert "error: the texts of this episode are used up" in played._repls.resumed  # type: ignore[attr-defined]


def test_a_text_counts_what_it_takes_in_memory() -> None:
    assert held_bytes("x" * 1000) == sys.getsizeof("x" * 1000)
    assert held_bytes(WIDE * 1000) > 4000
    for value in ([[]] * 10_000, {str(n): n for n in range(10_000)}, [{"": []}] * 10_000):
        size = sum(map(sys.getsizeof, (value, *value)))
        assert held_bytes(value) >= size


def test_an_ended_frame_keeps_no_final_line_and_no_output() -> None:
    played = tree(lambda code: CellDone("", final=1), max_turns=1)
    plays(played, "FINAL(1)", after="\nFINAL(a long line)")
    (frame,) = played._frames
    assert (frame.final_code, frame.final_text, frame.output) == (None, None, [])


LIMIT_S = LimitSettings().cell_cpu_s


@pytest.mark.parametrize(
    ("cell", "reported", "seen"),
    [
        (CellDone(""), 0, 0),
        (CellDone("", error="exception"), 1, 0),
        (CellDone("", error="syntax"), 1, 0),
        (CellDone("", error="memory"), 1, 0),
        (CellDone("", error="cpu", cpu_s=LIMIT_S), 1, 1),
        (CellDone("", cpu_s=LIMIT_S), 1, 1),  # a worker that says nothing of it
    ],
    ids=["clean", "exception", "syntax", "memory", "stopped", "denied"],
)
def test_the_reward_counts_only_errors_that_the_server_saw(cell, reported, seen):
    played = tree(lambda code: cell)
    plays(played, "one", after="\nFINAL_VAR(two)")  # two cells of one turn
    assert (played.counters.errors, played.failed_turns) == (reported, seen)
    played.play([FrameTurn(frame=0, text="no block")])
    assert (played.counters.errors, played.failed_turns) == (reported + 1, seen + 1)


def test_a_step_that_takes_longer_than_cells_may_is_void(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def script(code: str) -> Any:
        if code == "ask":
            return SubCall("rlm_query_batched", ["p"] * 8, None)
        now[0] += 70.0
        return CellDone("", final=1)

    played = tree(script)
    plays(played, "ask")
    now[0] += 1000.0  # the policy's time does not count
    plays(played, "slow")
    assert now[0] == 1000.0 + 6 * 70.0
    assert played.done
    assert played.void == module.BUSY
    reasons = [state.stop_reason for state in played.states()]
    assert reasons == ["error", *["final"] * 6, "timeout", "error"]


def test_steps_below_the_limit_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def script(code: str) -> Any:
        now[0] += 200.0
        return CellDone("printed")

    played = tree(script)
    for _ in range(3):
        plays(played, "slow")
    assert not played.done


def test_a_step_that_is_stopped_ends_at_its_next_cell() -> None:
    cells = []

    def script(code: str) -> Any:
        cells.append(code)
        if code == "ask":
            return SubCall("rlm_query_batched", ["p"] * 8, None)
        played.stop()  # another thread, during this cell
        return CellDone("printed")

    played = tree(script)
    plays(played, "ask")
    with pytest.raises(SandboxError, match="closed"):
        plays(played, "slow")
    assert cells == ["ask", "slow"]
    assert played._repls.closed == 1  # type: ignore[attr-defined]


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
    repls = Repls(lambda code: SubCall("rank", waiting.pop(0), None))
    settings = EnvSettings.model_validate({"rank": rank})
    played = Tree(settings, repls, "Which?", {"p": "text"})  # type: ignore[arg-type]
    for _ in calls:
        plays(played, "rank(context)")
    return played, repls.resumed


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
    monkeypatch.setattr(module.embedding, "embedder", Alphabet)

    def script(code: str) -> Any:
        played.stop()
        return SubCall("rank", ["Which?", "b"], None)

    played = tree(script)
    played._settings = EnvSettings(rank="minilm")
    with pytest.raises(SandboxError):
        plays(played, "rank(context)")
