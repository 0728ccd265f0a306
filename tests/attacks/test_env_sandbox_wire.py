"""The channel: what an honest worker sends arrives, and nothing else does harm."""

import json
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env.server.sandbox import wire
from env.server.sandbox.inside.channel import TooLargeError, frame
from env.server.sandbox.results import UNSET, cell_done
from env.server.sandbox.wire import MAX_ANSWER, MAX_FRAME, BadFrameError, WireFrame

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=30,
)


def receive(data: bytes, piece: int = 1 << 18) -> WireFrame | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        inbox = wire.Inbox(ours)
        for start in range(0, len(data), piece):
            theirs.sendall(data[start : start + piece])
            inbox.fill()
        return inbox.take()


def sized(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def sent_by_hand(header: dict[str, Any]) -> WireFrame | None:
    """What arrives of a frame that no honest worker sends."""
    return receive(sized(sized(json.dumps(header, separators=(",", ":")).encode())), piece=1 << 16)


@given(JSON, st.sampled_from([1 << 18, 1, 2, 5, 9]))
@settings(max_examples=40, deadline=None)
def test_any_json_value_arrives_whole_in_pieces_of_any_size(value: Any, piece: int) -> None:
    assert receive(frame("final", 7, value), piece) == WireFrame("final", 7, value)


@pytest.mark.parametrize("data", [struct.pack("!I", MAX_FRAME + 1), bytes(8), sized(b"x" * 99)])
def test_a_wrong_length_is_refused_before_anything_is_read(data: bytes) -> None:
    with pytest.raises(BadFrameError):
        receive(data)


@pytest.mark.parametrize(
    "change",
    [
        *({"n": True}, {"t": "exec"}, {"t": ["done"]}, {"b": [10**9]}, {"b": [-1]}, {"b": 0}),
        *({"v": {"s": 9}}, {"v": {"s": -1}}, {"v": {"d": [[0, 1]]}}, {"v": 2**63}, {"v": "text"}),
        *({"v": float("inf")}, {"v": float("nan")}, {"v": None, "b": [1, 1]}),
    ],
    ids=repr,
)
def test_a_forged_header_is_refused(change: dict[str, Any]) -> None:
    honest = {"t": "done", "n": 1, "v": 1, "b": []}
    assert sent_by_hand(honest) == WireFrame("done", 1, 1)
    with pytest.raises(BadFrameError):
        sent_by_hand(honest | change)


def test_the_longest_frame_arrives_and_no_longer_one_is_sent() -> None:
    text = "x" * (4_000_000 + 4 + MAX_FRAME - len(frame("call", 1, "x" * 4_000_000)))
    assert len(data := frame("call", 1, text)) == 4 + MAX_FRAME
    assert receive(data, piece=1 << 16) == WireFrame("call", 1, text)
    with pytest.raises(TooLargeError):
        frame("call", 1, text + "x")


def test_the_same_text_travels_once() -> None:
    assert len(frame("call", 1, ["x" * 100_000] * 30)) < 110_000


@pytest.mark.parametrize("value", ["x" * MAX_FRAME, 2**64, *(["x" * 10**6] * n for n in (5, 17))])
def test_what_does_not_fit_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(TooLargeError):
        frame("final", 1, value, MAX_ANSWER)


@pytest.mark.parametrize("item", [[], 0])
def test_items_without_text_count_too(item: Any) -> None:
    value = [item] * 63_000
    with pytest.raises(TooLargeError):
        frame("final", 1, value, MAX_ANSWER)
    with pytest.raises(BadFrameError, match="too large"):
        sent_by_hand({"t": "final", "n": 1, "v": value, "b": []})


def test_both_ends_count_alike() -> None:
    value = {"a": ["b", 1, None, {"c": [True, 2.5]}], "dd": "eee"}
    count = wire.characters(value)
    assert receive(frame("final", 1, value, count), piece=1 << 16)
    with pytest.raises(TooLargeError):
        frame("final", 1, value, count - 1)


@pytest.mark.parametrize("value", [object(), {"a": {1: object()}}, [print]])
def test_only_json_types_enter_a_sandbox(value: Any) -> None:
    with pytest.raises(TypeError):
        wire.pack(("init", value, {}))


def test_the_new_names_of_a_cell_are_bounded_before_they_are_read() -> None:
    report = {"stdout": "", "cut": 0, "error": None, "traceback": "", "full": False}

    def done(names: list[str]) -> Any:
        return cell_done({**report, "new": names}, 100, None, UNSET, 0.0)[0].new_names

    assert done(["n" * 300] * 200) == ["n" * 300] * 200
    with pytest.raises(BadFrameError, match="a bad report"):
        done(["n" * 510] * 32_000)
