"""HTTP bodies: their size, their time, their structure; MCP is a fixed answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env.server.door.requests import RequestLimits


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


def scope_of(path: str, length: int | None) -> Scope:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http", "method": "POST", "path": path, "headers": headers}


def post(
    path: str, *parts: bytes, length: int | None = None, stalls: bool = False, app: Any = echo
) -> tuple[int, bytes]:
    """Status and body of the answer to a request whose body arrives in parts."""
    return asyncio.run(asyncio.wait_for(_post(path, parts, length, stalls, app), 10))


async def _post(
    path: str, parts: tuple[bytes, ...], length: int | None, stalls: bool, app: Any
) -> tuple[int, bytes]:
    sent: list[Message] = []
    left = list(parts)

    async def receive() -> Message:
        if not left and stalls:
            await asyncio.Event().wait()
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left) or stalls}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = scope_of(path, sum(map(len, parts)) if length is None else length)
    await RequestLimits(app, body_s=0.05)(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


def test_a_body_is_handed_on_unchanged() -> None:
    assert post("/reset", b'{"se', b'ed": 1}') == (200, b'{"seed": 1}')


@pytest.mark.parametrize("length", [None, 400_000_000, 7])
def test_a_large_body_is_refused_however_long_it_says_it_is(length: int | None) -> None:
    status, body = post("/reset", *[b" " * 100_000] * 3, length=length)
    assert (status, json.loads(body)) == (413, {"detail": "a body has at most 256000 bytes"})


def test_a_long_path_is_refused_and_not_repeated() -> None:
    assert post("/" + "x" * 199) == (200, b"")
    status, body = post("/" + "x" * 200)
    assert (status, json.loads(body)) == (414, {"detail": "a path has at most 200 characters"})


def test_a_slow_body_is_refused() -> None:
    status, body = post("/reset", b"{", stalls=True, length=100)
    assert status == 408
    assert b"within" in body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/reset", b"[]"),
        ("/reset", b"\xff"),
        ("/rlm/tasks", b"[" * 1000),
        ("/reset", b"[" + b"[]," * 60_000 + b"0]"),
        ("/step", b'{"action": {"turns": [' + b"{}," * 600 + b"{}]}}"),
        ("/step", b'{"action": {"turns": [' + b"{}," * 500 + b"{}]}}"),
        ("/step", b'{"action": {"secret": 1}}'),
        ("/step", b'{"action": 7}'),
        ("/step", b"{}"),
    ],
)
def test_wrong_structure_is_a_short_422_before_any_route(path: str, body: bytes) -> None:
    status, answer = post(path, body, app=never)
    assert status == 422
    assert len(answer) < 1000
    assert b"secret" not in answer


@pytest.mark.parametrize(
    ("body", "number", "code"),
    [
        (b"{}", None, -32601),
        (b'{"jsonrpc": "2.0", "method": "openenv/session/create", "id": 7}', 7, -32601),
        (b'{"id": "\\ud800"}', "\ud800", -32601),
        (b'{"id": [1]}', None, -32601),
        (b"[7]", None, -32601),
        (b"no json", None, -32700),
        (b"", None, -32700),
        (b"[" * 4000, None, -32700),
        (b" " * 5000, None, -32700),
    ],
)
def test_mcp_answers_anything_with_an_error_of_json_rpc(
    body: bytes, number: Any, code: int
) -> None:
    status, answer = post("/mcp", body, app=never)
    assert status == 200
    told = json.loads(answer)
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", number, code)
    assert "result" not in told


def second_answer(app: ASGIApp, body: bytes = b"", leaves_s: float = 9.0) -> list[Message]:
    """Messages to the second of two clients; there is one place, and the first reads nothing.

    Args:
        app: application behind the limits.
        body: body of the second request.
        leaves_s: seconds after which the first client leaves.
    """

    async def both() -> list[Message]:
        limits = RequestLimits(app, handled=1, wait_s=0.05)
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def unread(message: Message) -> None:
            await asyncio.Event().wait()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def stay() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(leaves_s):
                    await limits(scope_of("/health", None), receive, unread)

        stuck = asyncio.create_task(stay())
        await asyncio.sleep(0)
        await limits(scope_of("/health", len(body) or None), receive, send)
        stuck.cancel()
        return sent

    return asyncio.run(both())


@pytest.mark.parametrize(("body", "leaves_s"), [(b"", 9.0), (b"{}", 0.01)])
def test_requests_beyond_the_limit_are_refused_in_words(body: bytes, leaves_s: float) -> None:
    start, text = second_answer(never, body, leaves_s)
    assert start["status"] == 503
    assert "try again later" in text["body"].decode()


def test_a_request_without_a_body_waits_for_its_place() -> None:
    async def once(scope: Scope, receive: Receive, send: Send) -> None:
        if not started:
            started.append(True)
            await asyncio.Event().wait()
        await echo(scope, receive, send)

    started: list[bool] = []
    assert second_answer(once, leaves_s=0.01)[0]["status"] == 200


def test_an_answer_that_nobody_reads_keeps_no_place() -> None:
    assert second_answer(echo)[0]["status"] == 200


def test_a_flood_of_posts_is_delayed_and_a_burst_is_not() -> None:
    async def story() -> tuple[list[float], int]:
        limits = RequestLimits(echo, per_s=100.0)
        started = asyncio.get_running_loop().time()
        took: list[float] = []
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                took.append(asyncio.get_running_loop().time() - started)
                statuses.append(message["status"])

        each = [limits(scope_of("/health", None), receive, send) for _ in range(300)]
        waiting = asyncio.gather(*each)
        await asyncio.sleep(0.3)
        waiting.cancel()
        return took, statuses.count(503)

    took, refused = asyncio.run(story())
    served = len(took) - refused
    assert refused == pytest.approx(300 - 64 - 200, abs=5)  # those later than two seconds
    assert sorted(took)[60] < 0.2
    assert 64 <= served < 64 + 50


def test_a_body_that_arrives_makes_room_for_itself() -> None:
    async def story() -> list[int]:
        limits = RequestLimits(echo, body_s=60.0)
        statuses: list[int] = []

        async def stalls() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def arrives() -> Message:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        slow = [asyncio.create_task(limits(scope_of("/reset", 2), stalls, send)) for _ in range(16)]
        await asyncio.sleep(0.01)
        for _ in range(3):
            await limits(scope_of("/reset", 2), arrives, send)
        await asyncio.sleep(0.01)
        for task in slow:
            task.cancel()
        return statuses

    assert sorted(asyncio.run(story())) == [200, 200, 200, 408]
