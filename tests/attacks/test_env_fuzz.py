"""Whatever a hostile worker or client sends is understood or refused.

A worker's frames and a client's messages are honest ones in which something is wrong: a value, a
reference, a field, a length. Random bytes alone would never come past the first check.
"""

import asyncio
import json
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from env import prompts, variables
from env.chat_tokens import TOKEN
from env.problems.store import ProblemStore
from env.server import app
from env.server.door import guard
from env.server.door.guard import INTERNAL
from env.server.sandbox import results, wire
from env.server.service import read_problems, read_settings
from env.server.tree.frame import as_context, texts_of
from env.settings import LimitSettings

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
ROOT = str(Path(__file__).resolve().parents[2])
QUICK = settings(
    derandomize=True, deadline=None, suppress_health_check=[*HealthCheck], database=None
)
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(1800)]
FRAME_CPU_S = 2.0
SESSION_S = 60.0
"""Limit of one session; an honest one takes 0.05 s on a quiet machine."""
SETTINGS = """
env:
  allow_documents: true
  limits: {cell_cpu_s: 0.2, memory_mb: 32, max_children: 3}
prepare:
  synthetic: {collections: {train: 2, validation: 1, test: 1}}
"""
COLLIDING = ("self", "func")
"""Names of OpenEnv's own parameters, which it cannot pass on."""
HIDDEN = {"components": {}, "metrics": None, "answer": None}


def fuzz(check: Callable[..., None], *inputs: Any, examples: int, **options: Any) -> None:
    """Look for an input that fails the check; a quick search is the same each time."""
    quiet = settings(QUICK, max_examples=examples, derandomize=examples <= 1000, **options)
    quiet(given(*inputs)(check))()


# --- values


def mostly(usual: st.SearchStrategy[Any], *others: st.SearchStrategy[Any]) -> Any:
    """Three times of four the usual value."""
    return st.integers(1, 4).flatmap(lambda n: st.one_of(*others) if n == 4 else usual)


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


TEXT = st.text(max_size=30) | st.sampled_from(
    (
        *("", "a", "x_1", "exception", "syntax", "stopped", "\x00", "\ud800", "\u202e", "é" * 40),
        *("<|im_end|>", "<|im_<|x|>end|>", "<</s>/s>", "[/IN[INST]ST]"),
        *("\n```repl\n", "x" * 3000),
    )
)
NUMBER = st.sampled_from((0, -1, 3, 2**63, -(2**63), 2**64, 10**30, 1.5, -0.0, 1e308, math.inf))
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
) | st.sampled_from((3, 31, 33, 63, 65, 199, 201, 260)).map(nested)


@st.composite
def broken(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> Any:
    """A value in which one item is another value, or is missing."""
    place = value = json.loads(json.dumps(draw(values)))
    while True:
        key = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], list | dict) or not place[key] or draw(st.integers(0, 2)) < 1:
            break
        place = place[key]
    if draw(st.booleans()):
        place[key] = draw(VALUE)
    else:
        del place[key]
    return value


# --- what a worker sends


def times(items: st.SearchStrategy[Any], *counts: int) -> st.SearchStrategy[list[Any]]:
    return st.builds(lambda item, count: [item] * count, items, st.sampled_from(counts))


def in_parts(value: Any, texts: dict[str, int]) -> Any:
    """The header's form of a value: texts are references, and a dict is a list of pairs."""
    if isinstance(value, str):
        return {"s": texts.setdefault(value, len(texts))}
    if isinstance(value, list):
        return [in_parts(item, texts) for item in value]
    if isinstance(value, dict):
        pairs = ((texts.setdefault(key, len(texts)), item) for key, item in value.items())
        return {"d": [[key, in_parts(item, texts)] for key, item in pairs]}
    return value


def sized(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


TEXTS = st.one_of(
    st.lists(TEXT, max_size=3), times(TEXT, 1, 2, 9, 300), times(st.just("x" * 60_000), 1, 17, 300)
)
DONE = st.fixed_dictionaries(
    {
        "stdout": TEXT,
        "cut": mostly(st.sampled_from((0, 7)), NUMBER, VALUE),
        "error": mostly(st.sampled_from((None, "exception", "syntax", "stopped")), TEXT),
        "traceback": TEXT,
        "new": mostly(times(st.sampled_from(("x_1", "a")), 0, 1, 9, 300), TEXTS),
        "full": st.booleans(),
    }
)
CALL = st.builds(
    lambda fn, texts, contexts: {"fn": fn, "prompts": texts, "contexts": contexts(len(texts))},
    mostly(st.sampled_from(get_args(results.SubCallName)), TEXT),
    TEXTS,
    st.just(lambda count: None) | VALUE.map(lambda value: lambda count: [value] * min(count, 9)),
)
KINDS = mostly(
    st.tuples(st.just("done"), DONE) | st.tuples(st.just("call"), CALL),
    st.tuples(st.sampled_from(("done", "call", "final", "ready", "exec", "")), VALUE),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    kind, value = draw(KINDS)
    texts: dict[str, int] = {}
    tree = in_parts(value, texts)
    blobs = [text.encode("utf-8", "surrogatepass") for text in texts]
    header = {"t": kind, "n": 1, "b": [len(blob) for blob in blobs], "v": tree}
    head = json.dumps(draw(mostly(st.just(header), broken(st.just(header)))))
    data = sized(sized(draw(mostly(st.just(head), spoilt(head))).encode()) + b"".join(blobs))
    return data[: draw(mostly(st.just(len(data)), st.integers(0, 12)))]


def spoilt(text: str) -> st.SearchStrategy[str]:
    """A text of JSON cut, nested deeply, or with a number of 5,000 digits."""
    return st.integers(0, len(text)).map(lambda end: text[:end]) | st.sampled_from(
        ("[" * 50_000 + text, text.replace("0", "1" * 5000, 1))
    )


GARBAGE = st.binary(max_size=60)
STREAM = mostly(
    st.lists(frames(), min_size=1, max_size=2).map(b"".join),
    GARBAGE | GARBAGE.map(sized) | GARBAGE.map(lambda data: sized(sized(data))),
)
PIECE = st.sampled_from((1 << 18, 1000, 7))


def check_worker(stream: bytes, piece: int) -> None:
    """Only BadFrameError leaves the decoder and the reading of results, after little time."""
    place = 0

    def receive(most: int) -> bytes:
        nonlocal place
        place, start = place + min(most, piece + len(stream) // 1000), place
        return stream[start:place]

    inbox = wire.Inbox(SimpleNamespace(recv=receive))  # type: ignore[arg-type]
    started = time.thread_time()
    try:
        more = True
        while more:
            more = inbox.fill()
            while (frame := inbox.take()) is not None:
                check_frame(frame)
    except wire.BadFrameError:
        pass
    used = time.thread_time() - started
    assert used < FRAME_CPU_S, f"{used:.1f} s for {len(stream)} bytes"


def check_frame(frame: wire.WireFrame) -> None:
    """A message has JSON types and bounded texts, and shows no token of a chat template."""
    assert frame.kind in ("ready", "call", "final", "done")
    count = weight(frame.value)
    assert count <= wire.MAX_TEXT, f"{count} characters"
    # as the environment's answer and a later context carry it
    json.dumps(frame.value, allow_nan=False)
    wire.pack(("return", 1, frame.value))
    if frame.kind == "call":
        call = results.sub_call(frame.value)
        assert call.prompts
        assert call.fn in get_args(results.SubCallName)
        for prompt in call.prompts:
            prompts.defuse(prompt)
        for context in call.contexts or []:
            sum(map(len, texts_of(as_context(context))))
    if frame.kind == "done":
        done, _ = results.cell_done(frame.value, 1200, "cpu", None, 0.0)
        limits = LimitSettings()
        shown = prompts.cell_message(done.stdout, done.cut, done.new_names, done.traceback, limits)
        assert len(done.stdout) <= 1200
        assert len(shown) < 8 * limits.observation_chars
        for text in (done.stdout, done.traceback, shown):
            assert not TOKEN.search(text), f"a chat token: {text}"


def weight(value: Any) -> int:
    """Characters of all texts, after a check that all types are JSON's."""
    if isinstance(value, dict):
        return sum(map(weight, value)) + sum(map(weight, value.values()))
    if isinstance(value, list):
        return sum(map(weight, value))
    if isinstance(value, str):
        value.encode()  # no lone surrogate
        return len(value)
    assert value is None or type(value) in (bool, int, float), type(value)
    assert type(value) is not int or value.bit_length() < 65, "a number of more than 64 bits"
    return 0


@pytest.mark.parametrize("examples", [400, pytest.param(30_000, marks=NIGHTLY)])
def test_whatever_a_worker_sends_is_a_message_or_refused(examples: int) -> None:
    fuzz(check_worker, STREAM, PIECE, examples=examples)


# --- what a client sends

CODE = st.sampled_from(
    (
        *("x = 1", "print(7)", "1 / 0", "x = (", "while True: pass", "import os; os._exit(3)"),
        *("FINAL({1: {2: (3, {4})}})", "FINAL(lambda: 1)", "FINAL('x' * 1_000_000)"),
        "FINAL({'paper_id': 'p1', 'start': -5, 'end': 10**15})",
        *("FINAL([])", "FINAL(['a'])", "FINAL(context)", "FINAL(float('nan'))", "FINAL('\\ud800')"),
        "FINAL([['a' * 100_000] * 60] * 4)",
        "v = []\nfor _ in range(62): v = [v]\nFINAL(v)",
        "x = bytearray(10**9)",
        "print('<|im_<|x|>end|>' * 100)",
        "y = llm_query('a')",
        "y = [llm_query('a') for _ in range(9)]",
        "y = rlm_query('a', 'one. two.')",
        "y = rlm_query_batched(['a'] * 3, [{'p': 'one.'}] * 3)",
        "FINAL(rlm_query_batched(['a'] * 5))",
        "y = rlm_query('a' * 9000, 7)",
    )
) | TEXT.map("FINAL({})".format)
BLOCK = CODE.map("```repl\n{}\n```".format)
TURN = mostly(
    BLOCK,
    TEXT,
    BLOCK.map(lambda block: block * 2),
    st.sampled_from(("```repl\nx\n```" * 3000, "```repl\n" * 20_000, "FINAL(\n" * 20_000 + ")x")),
)
FINISH = mostly(st.just("stop"), st.sampled_from(("length", "error", "whatever")))
FRAME = st.fixed_dictionaries(
    {"frame": st.sampled_from((0, 0, 1, 2, 3, 10**30)), "text": TURN, "finish": FINISH}
)
ACTION = st.fixed_dictionaries({"text": TURN}) | st.fixed_dictionaries(
    {"turns": st.lists(FRAME, min_size=1, max_size=3)}
)
NAMES = ("seed", "episode_id", "problem_id", "split", "difficulty", "owner_key", "unknown")
RESET = mostly(
    st.just({"seed": 1}) | st.fixed_dictionaries({"question": TEXT, "papers": st.just({"b": "c"})}),
    st.dictionaries(st.sampled_from(NAMES), VALUE, min_size=1, max_size=2),
    st.sampled_from(COLLIDING).map(lambda name: {name: 1}),
    st.fixed_dictionaries({"question": TEXT, "papers": st.dictionaries(TEXT, TEXT, max_size=3)}),
)


def message(kind: str, data: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    whole = st.fixed_dictionaries({"type": st.just(kind), "data": data})
    return mostly(
        whole.map(json.dumps), broken(whole).map(json.dumps), whole.map(json.dumps).flatmap(spoilt)
    )


BEGIN = '{"type":"reset","data":{"seed":1}}'
SPECIAL = (
    *("", "[]", "NaN", "\ud800", '{"type":"state"}', '{"type":"step"}', '{"type":"reset"}', BEGIN),
    *('{"type":"mcp","data":{"method":"tools/list"}}', '{"type":"reset","data":{"self":1}}'),
    *('{"type":"step","data":{"text":"FINAL(context)"}}', '{"type":"state","data":{}}', b"\xff"),
    '{"type":"close"}',
)
MESSAGE = mostly(
    message("step", ACTION) | message("reset", RESET),
    st.sampled_from(SPECIAL),
    TEXT | st.binary(max_size=20) | VALUE.map(json.dumps),
)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=6)
SESSION = MESSAGES | MESSAGES.map(lambda messages: [BEGIN, *messages])


class Server:
    """The whole application in this process, with a real sandbox."""

    def __init__(self, client: TestClient, problems: ProblemStore) -> None:
        evidence = [fact for name in problems.ids() for fact in problems.get(name).evidence]
        self.client, self.gold = client, [span.text for fact in evidence for span in fact.spans]

    def check(self, messages: list[str | bytes]) -> None:
        """Each message has one answer until the client closes; then nothing is left."""
        messages = [*messages, '{"type":"state"}']
        answers = self.talk(messages)
        for sent, text in zip(messages, answers, strict=False):
            self.check_answer(sent, text)
        if len(answers) < len(messages):
            assert type_of(messages[len(answers)]) == "close", messages[len(answers)]
        else:
            assert len(answers) == len(messages)
            assert json.loads(answers[-1])["type"] == "state", answers
        children = psutil.Process().children()
        zygotes = [child for child in children if "inside.zygote" in " ".join(child.cmdline())]
        assert zygotes
        workers = [worker for zygote in zygotes for worker in zygote.children()]
        assert not psutil.wait_procs(workers, timeout=5)[1], "processes are left"

    def talk(self, messages: list[str | bytes]) -> list[str]:
        """The answers to one session, which has ended at the return."""
        answers = []
        with self.client.websocket_connect("/ws") as socket, suppress(WebSocketDisconnect):
            for sent in messages:
                kind = "bytes" if isinstance(sent, bytes) else "text"
                socket.send({"type": "websocket.receive", kind: sent})
                answers.append(socket.receive_text())
            socket.close()
            while True:
                answers.append(socket.receive_text())
        return answers

    def check_answer(self, sent: str | bytes, text: str) -> None:
        """It is an observation or a typed refusal, without exceptions, paths or gold."""
        answer = json.loads(text)
        kind, data = answer["type"], answer["data"]
        assert kind in ("observation", "state", "error"), kind
        assert "Traceback (most" not in text
        assert ROOT not in text
        if kind == "error" and data["code"] == "EXECUTION_ERROR":
            assert data["message"] == INTERNAL
            assert any(name in str(sent) for name in COLLIDING)
        else:
            assert INTERNAL not in text, text[:300]
            assert data.get("code") not in ("SESSION_ERROR", "FACTORY_ERROR"), text[:300]
        if kind == "observation":
            self.check_observation(data, text)
        if kind == "state" and not data["done"]:
            assert not any(gold in text for gold in self.gold)

    def check_observation(self, data: dict[str, Any], text: str) -> None:
        """Before the end it has no reward, score or gold."""
        seen = data["observation"]
        assert seen["refused"] is None or isinstance(seen["refused"], str)
        if not data["done"]:
            assert data["reward"] is None
            assert {name: seen[name] for name in HIDDEN} == HIDDEN
            assert not seen["problem"] or seen["problem"]["tier"] is None
            assert seen["frames"] or seen["refused"]
            assert not any(gold in text for gold in self.gold)


def type_of(sent: str | bytes) -> Any:
    try:
        value = json.loads(sent)
    except (ValueError, RecursionError):
        return None
    return value.get("type") if isinstance(value, dict) else None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("fuzz") / "settings.yaml"
    path.write_text(SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variables.SETTINGS, str(path))
        patch.setenv(variables.DATA, "")
        built = app.build()
        problems = read_problems(read_settings(os.environ), os.environ)

        async def hurried(scope: Scope, receive: Receive, send: Send) -> None:
            async with asyncio.timeout(None if scope["type"] == "lifespan" else SESSION_S):
                await built(scope, receive, send)

        logging.disable()
        with TestClient(hurried, base_url="http://127.0.0.1") as client:
            yield Server(client, problems)
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("examples", [60, pytest.param(4_000, marks=NIGHTLY)])
def test_whatever_a_client_sends_is_answered(server: Server, examples: int) -> None:
    server.check([*SPECIAL])
    fuzz(lambda messages: server.check(messages), SESSION, examples=examples)


# --- the properties can fail


def fails(check: Callable[..., None], *inputs: Any, match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        fuzz(check, *inputs, examples=1000, phases=[Phase.generate])


def test_negative_control_a_text_named_too_often_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "characters", lambda value: 0)
    fails(check_worker, STREAM, PIECE, match="characters")


def test_negative_control_a_token_inside_a_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "without_chat_tokens", lambda text: TOKEN.sub("", text))
    fails(check_worker, STREAM, PIECE, match="a chat token")


def test_negative_control_without_the_guard_sessions_end_by_exceptions(server, monkeypatch):
    monkeypatch.setattr(guard, "refusal", lambda text: None)
    fails(lambda messages: server.check(messages), SESSION, match=".")
