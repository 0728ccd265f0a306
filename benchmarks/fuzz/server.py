"""Messages of a hostile client, and the properties that must hold for any messages in any order.

- Every message is answered by an observation or by a typed refusal.
- No answer contains the text of an exception, a path of this machine, or gold before the end.
- The session survives the message, and leaves no process behind.

The whole application runs in this process through its ASGI interface, so that coverage can guide;
the sandbox is real.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from openenv.core.env_server.serialization import serialize_observation
from pydantic import ValidationError

from benchmarks.fuzz.source import Source
from env import auth
from env.models import RLMAction
from env.server import app as server
from env.server.environment import RLMEnvironment
from env.server.guard import INTERNAL
from env.server.service import Service, read_problems, read_settings

_SETTINGS = """
env:
  allow_documents: true
  limits: {cell_cpu_s: 0.2, memory_mb: 32, max_children: 3}
prepare:
  synthetic: {collections: {train: 2, validation: 1, test: 1}}
"""
_ROOT = str(Path(__file__).resolve().parents[2])
_CODES = (
    "x = 1",
    "print(7)",
    "FINAL([])",
    "FINAL(['a'])",
    "FINAL(context)",
    "FINAL(float('nan'))",
    "FINAL('\\ud800')",
    "FINAL([['a' * 100_000] * 60] * 4)",
    "v = []\nfor _ in range(62): v = [v]\nFINAL(v)",
    "1 / 0",
    "x = (",
    "while True: pass",
    "import os; os._exit(3)",
    "x = bytearray(10**9)",
    "print('<|im_<|x|>end|>' * 100)",
    "y = llm_query('a')",
    "y = [llm_query('a') for _ in range(9)]",
    "y = rlm_query('a', 'one. two.')",
    "y = rlm_query_batched(['a'] * 3, [{'p': 'one.'}] * 3)",
    "FINAL(rlm_query_batched(['a'] * 5))",
    "y = rlm_query('a' * 9000, 7)",
)
_MESSAGES = (
    '{"type":"state"}',
    '{"type":"close"}',
    '{"type":"step"}',
    '{"type":"reset"}',
    '{"type":"mcp","data":{"jsonrpc":"2.0","method":"tools/list","params":{},"id":1}}',
    "",
    "[]",
    "NaN",
    "\ud800",
)
_RESETS = [
    "seed",
    "episode_id",
    "problem_id",
    "split",
    "difficulty",
    "question",
    "papers",
    "owner_key",
    "unknown",
    "self",
    "func",
]
_COLLIDING = ("self", "func")
"""Names of OpenEnv's own parameters, which it cannot pass on."""
_INPUT_S = 30.0
"""Limit of one input, in wall seconds; an honest one takes 0.05 on a quiet machine."""
_HIDDEN: dict[str, Any] = {"components": {}, "metrics": None, "frame_scores": {}, "answer": None}


def check_client(data: bytes) -> None:
    """Play one input; any exception is a finding."""
    source = Source(data)
    started = time.monotonic()
    if source.odd(4):
        _check_models(source)
    else:
        messages = list(_messages(source))
        _check_session(messages, fixture().talk([*messages, '{"type":"state"}']))
    workers = fixture().workers()
    assert not workers, f"processes left: {workers}"
    assert time.monotonic() - started < _INPUT_S


# --- what must hold


def _check_session(messages: list[str | bytes], answers: list[list[str]]) -> None:
    """Each message has one answer until the client closes; the last message requests the state."""
    for number, message in enumerate(messages):
        if _type(message) == "close":
            return
        assert len(answers[number]) == 1, (message, answers[number])
        _check_answer(message, answers[number][0])
    assert json.loads(answers[-1][0])["type"] == "state", answers[-1]


def _check_answer(message: str | bytes, text: str) -> None:
    answer = json.loads(text)
    kind, data = answer["type"], answer["data"]
    assert kind in ("observation", "state", "error", "mcp"), kind
    assert "Traceback (most" not in text
    assert _ROOT not in text
    if kind == "error" and data["code"] == "EXECUTION_ERROR":
        assert data["message"] == INTERNAL
        assert _type(message) == "mcp" or any(name in str(message) for name in _COLLIDING)
    else:
        assert INTERNAL not in text, text[:300]
        assert data.get("code") not in ("SESSION_ERROR", "FACTORY_ERROR"), text[:300]
    if kind == "observation":
        _check_observation(data, text)
    if kind == "state" and not data["done"]:
        _check_no_gold(text)


def _check_observation(data: dict[str, Any], text: str) -> None:
    seen = data["observation"]
    assert seen["refused"] is None or isinstance(seen["refused"], str)
    if not data["done"]:
        assert data["reward"] is None
        assert {name: seen[name] for name in _HIDDEN} == _HIDDEN
        assert not seen["problem"] or seen["problem"]["tier"] is None
        assert seen["frames"] or seen["refused"]
        _check_no_gold(text)


def _check_no_gold(text: str) -> None:
    for gold in fixture().gold:
        assert gold not in text


def _check_models(source: Source) -> None:
    """Play the environment itself with any input that its models accept."""
    environment = RLMEnvironment(fixture().service)
    try:
        for _ in range(1 + source.byte() % 6):
            if source.odd(3):
                seen = environment.reset(**_reset(source))
            else:
                try:
                    action = RLMAction.model_validate(_action(source))
                except ValidationError:
                    continue
                seen = environment.step(action)
            text = json.dumps(serialize_observation(seen), allow_nan=False)
            assert INTERNAL not in text, text[:300]
            _check_observation(json.loads(text), text)
            environment.state.model_dump_json()
    finally:
        environment.close()


# --- inputs


def _messages(source: Source) -> Iterator[str | bytes]:
    if not source.odd(8):
        yield json.dumps({"type": "reset", "data": {"seed": source.byte() % 3}})
    for _ in range(1 + source.byte() % 6):
        kind = source.byte() % 16
        if kind < 8:
            yield source.broken(json.dumps({"type": "step", "data": _action(source)}))
        elif kind < 11:
            yield source.broken(json.dumps({"type": "reset", "data": _reset(source)}))
        elif kind == 11:
            yield source.choose(_MESSAGES)
        elif kind == 12:
            yield source.bytes(20)
        elif kind == 13:
            yield json.dumps(source.value())
        elif kind == 14:
            yield source.text()
        else:
            message = {"type": source.choose(("step", "mcp", "state", "x")), "data": source.value()}
            message[source.text()] = source.value()
            yield json.dumps(message)


def _type(message: str | bytes) -> Any:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        return None
    return value.get("type") if isinstance(value, dict) else None


def _action(source: Source) -> Any:
    action: dict[str, Any] = {}
    if source.odd(4):
        turns = [_turn(source) for _ in range(1 + source.byte() % 3)]
        action["turns"] = source.value() if source.odd(12) else turns
    if not action or source.odd(16):
        action["text"] = source.value() if source.odd(12) else _policy(source)
    if source.odd(3):
        action["seq"] = source.choose((0, 1, 1, 2, None, -1, 10**30, 1.5, "1"))
    if source.odd(16):
        action[source.choose(("metadata", "unknown"))] = source.value()
    return action


def _turn(source: Source) -> Any:
    turn: dict[str, Any] = {"frame": source.choose((0, 1, 2, 1, 2, 3, 10**30))}
    turn["text"] = _policy(source)
    if source.odd(6):
        turn["finish"] = source.choose(("stop", "length", "error", "whatever"))
    if source.odd(16):
        turn[source.choose(("frame", "text", "finish", "unknown"))] = source.value()
    return turn


def _policy(source: Source) -> str:
    """A possible turn of a policy: usually one block."""
    kind = source.byte() % 8
    code = source.choose(_CODES) if kind < 6 else source.text()
    if kind == 5:
        return f"{code}\nFINAL({source.text()})"
    if kind == 7:
        return source.choose((source.text(), "```repl\n" * 20_000, "FINAL(\n" * 20_000 + ")x"))
    return f"```repl\n{code}\n```" * source.choose((1, 1, 1, 1, 1, 1, 2, 3000))


def _reset(source: Source) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for _ in range(source.byte() % 3):
        name = source.choose(_RESETS)
        arguments[name] = source.value()
    if source.odd(3):
        arguments["question"] = source.text()
        arguments["papers"] = {source.text(): source.text(), "b": source.text()}
    return arguments


# --- the server


class _Fixture:
    """The started application, and the event loop that drives it."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(_SETTINGS)
            file.flush()
            environ = {auth.SETTINGS: file.name, auth.DATA: ""}
            with mock.patch.dict(os.environ, environ):
                self._app = server.build()
                settings = read_settings(environ)
                self._service = Service(settings, read_problems(settings, environ))
        problems = self._service.problems
        self.gold = [
            span.text
            for problem_id in problems.ids()
            for fact in problems.get(problem_id).evidence
            for span in fact.spans
        ]
        self._loop = asyncio.new_event_loop()
        self._life = self._app.router.lifespan_context(self._app)
        self._loop.run_until_complete(self._life.__aenter__())
        _ = self._service.host

    def service(self) -> Service:
        return self._service

    def talk(self, messages: list[str | bytes]) -> list[list[str]]:
        """Play one session; return the answers to each message, and to the end of the session."""
        return self._loop.run_until_complete(_talk(self._app, messages))

    def workers(self) -> str:
        """Process ids below this process's zygotes."""
        zygotes = [
            pid
            for pid in _children(os.getpid())
            if b"inside.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return " ".join(child for pid in zygotes for child in _children(pid))

    def close(self) -> None:
        """End the application and its sandboxes."""
        self._loop.run_until_complete(self._life.__aexit__(None, None, None))
        self._service.close()
        self._loop.close()


def _children(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@cache
def fixture() -> _Fixture:
    """The application of this process, started at its first use."""
    return _Fixture()


async def _talk(app: Any, messages: list[str | bytes]) -> list[list[str]]:
    answers: list[list[str]] = [[]]  # before the first message: accepted
    waiting = iter(messages)
    begun = False
    answered = asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "websocket.connect"}
        await asyncio.wait_for(answered.wait(), _INPUT_S)  # the server reads ahead
        answered.clear()
        for message in waiting:
            answers.append([])
            kind = "bytes" if isinstance(message, bytes) else "text"
            return {"type": "websocket.receive", kind: message}
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: dict[str, Any]) -> None:
        answers[-1].append(message.get("text") or message["type"])
        answered.set()

    scope = {
        "type": "websocket",
        "path": "/ws",
        "query_string": b"",
        "headers": [],
        "subprotocols": [],
        "app": app,
    }
    await app(scope, receive, send)
    return answers[1:]
