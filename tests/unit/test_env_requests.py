"""HTTP bodies: structure and rate; MCP is a fixed answer. `test_env_door.py` has the rest."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

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


def post(path: str, *parts: bytes, app: Any = echo) -> tuple[int, bytes]:
    """Status and body of the answer to a request whose body arrives in parts."""
    sent: list[Message] = []
    left = list(parts)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = scope_of(path, sum(map(len, parts)))
    asyncio.run(asyncio.wait_for(RequestLimits(app, body_s=0.05)(scope, receive, send), 10))
    return sent[0]["status"], sent[1]["body"]


def test_a_body_is_handed_on_unchanged() -> None:
    assert post("/reset", b'{"se', b'ed": 1}') == (200, b'{"seed": 1}')


WRONG = [
    *(b"[]", b"\xff", b"[" * 1000, b'{"action": {"secret": 1}}', b'{"action": 7}', b"{}"),
    b"[" + b"[]," * 60_000 + b"0]",
    b'{"action": {"turns": [' + b"{}," * 600 + b"{}]}}",
]


@pytest.mark.parametrize("body", WRONG, ids=range(8))
def test_wrong_structure_is_a_short_422_before_any_route(body):
    status, answer = post("/step", body, app=never)
    assert (status, len(answer) < 1000, b"secret" in answer) == (422, True, False)


RPC = [
    (b'{"jsonrpc": "2.0", "method": "openenv/session/create", "id": 7}', 7, -32601),
    (b'{"id": [1]}', None, -32601),
    (b"no json", None, -32700),
    (b"[" * 4000, None, -32700),
]


@pytest.mark.parametrize(("body", "number", "code"), RPC, ids=range(4))
def test_mcp_answers_anything_with_an_error_of_json_rpc(body, number, code):
    status, answer = post("/mcp", body, app=never)
    told = json.loads(answer)
    assert (status, told["id"], told["error"]["code"]) == (200, number, code)
    assert "result" not in told


def test_a_flood_of_posts_is_delayed_and_a_burst_is_not() -> None:
    answers: list[tuple[float, int]] = []

    async def story() -> None:
        limits = RequestLimits(echo, per_s=100.0)
        clock = asyncio.get_running_loop().time
        started = clock()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answers.append((clock() - started, message["status"]))

        each = [limits(scope_of("/health", None), receive, send) for _ in range(300)]
        waiting = asyncio.gather(*each)
        await asyncio.sleep(0.3)
        waiting.cancel()

    asyncio.run(story())
    refused = [status for _, status in answers].count(503)
    assert refused == pytest.approx(300 - 64 - 200, abs=20)  # those later than two seconds
    assert sorted(answers)[60][0] < 0.2
    assert 64 <= len(answers) - refused < 64 + 50
