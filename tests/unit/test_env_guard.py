"""The guard on a WebSocket: idle sessions and what they read. `test_env_door.py` has the rest."""

import asyncio
import json
import logging
from functools import partial
from typing import Any

from helpers.stories import played
from starlette.types import Message, Receive, Scope, Send

from env.server.door.guard import IDLE, LEAVES, Guard
from env.server.door.seats import Seats

STATE = '{"type":"state"}'


class Client:
    """A client's end of one connection to an application."""

    def __init__(self) -> None:
        self.scope: Scope = {"type": "websocket", "path": "/ws", "query_string": b""}
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.inbox.put_nowait({"type": "websocket.connect"})
        self.sent: list[Message] = []

    def says(self, text: str) -> None:
        self.inbox.put_nowait({"type": "websocket.receive", "text": text})

    async def sends(self, message: Message) -> None:
        self.sent.append(message)

    def starts(self, guard: Guard) -> asyncio.Task[None]:
        return asyncio.create_task(guard(self.scope, self.inbox.get, self.sends))

    @property
    def answers(self) -> list[Any]:
        return [json.loads(m["text"]) for m in self.sent if m["type"] == "websocket.send"]

    @property
    def closed(self) -> list[tuple[int, str]]:
        return [(m["code"], m["reason"]) for m in self.sent if m["type"] == "websocket.close"]


async def loop(scope: Scope, receive: Receive, send: Send) -> None:
    """An application like OpenEnv's: each message is an observation, `slow` takes a while."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        if "slow" in message["text"]:
            await asyncio.sleep(0.3)
        await send({"type": "websocket.send", "text": '{"type":"observation","data":{}}'})


OBSERVATION = '{"type":"observation","data":{"observation":{"refused":%s},"reward":null,"done":%s}}'


def guarded(count: int = 9, idle_s: float = 9.0, app: Any = loop) -> Guard:
    places = Seats(9.0, wait_s=0.05)
    places.limit(count, "because")
    return Guard(app, places, idle_s, 1000)


@played
async def test_a_step_is_not_idle_time() -> None:
    client = Client()
    client.says('{"type":"step","data":{"text":"slow"}}')
    task = client.starts(guarded(idle_s=0.1))
    await asyncio.sleep(0.25)
    assert not client.closed
    await task
    assert client.answers == [{"type": "observation", "data": {}}]


def test_an_exceptions_text_reaches_neither_the_client_nor_a_line_of_its_own_in_the_log(caplog):
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        said = {"message": "a\nCRITICAL" * 999, "code": "SESSION_ERROR"}
        text = json.dumps({"type": "error", "data": said}, separators=(",", ":"))
        await send({"type": "websocket.send", "text": text})

    client = Client()
    with caplog.at_level(logging.ERROR):
        asyncio.run(guarded(app=failing)(client.scope, client.inbox.get, client.sends))
    data = {"message": "internal error of the server", "code": "SESSION_ERROR"}
    assert client.answers == [{"type": "error", "data": data}]
    assert "\n" not in caplog.messages[0]
    assert len(caplog.messages[0]) < 400


@played
async def test_a_client_that_leaves_ends_its_step() -> None:
    """Messages that it sent before do not hide that it left."""
    ended = asyncio.Event()

    async def stepping(scope: Scope, receive: Receive, send: Send) -> None:
        LEAVES.get().append(partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set))
        for _ in range(2):
            await receive()
        await ended.wait()  # the step

    client = Client()
    task = client.starts(guarded(app=stepping))
    for _ in range(3):
        client.says(STATE)
    await asyncio.sleep(0.01)
    assert not ended.is_set()
    client.inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await task


@played
async def test_only_an_episode_makes_a_place_permanent() -> None:
    for refused, done, stays in (
        ("null", "false", True),
        ('"reset first: \\"refused\\":null"', "false", False),
        ("null", "true", False),
    ):
        text = OBSERVATION % (refused, done)

        async def answering(scope: Scope, receive: Receive, send: Send, text: str = text) -> None:
            await receive()
            await send({"type": "websocket.send", "text": text})
            await receive()

        places = Seats(9.0, silent_s=0.0, wait_s=0.05)
        places.limit(1, "because")
        guard = Guard(answering, places, 9.0, 1000)
        first, second = Client(), Client()
        task = first.starts(guard)
        await asyncio.sleep(0.01)
        other = second.starts(guard)
        await asyncio.sleep(0.2)
        assert bool(first.closed) != stays, text
        for left in (task, other):
            left.cancel()


@played
async def test_the_state_is_written_once_between_steps() -> None:
    read: list[str] = []

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        while (message := await receive())["type"] != "websocket.disconnect":
            read.append(json.loads(message["text"])["type"])
            data = {"type": read[-1], "data": {"step_count": read.count("step")}}
            await send({"type": "websocket.send", "text": json.dumps(data, separators=(",", ":"))})

    client = Client()
    task = client.starts(guarded(app=counting))
    for text in [STATE] * 3 + ['{"type":"step","data":{"text":"a"}}', STATE, STATE]:
        client.says(text)
    client.inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await task
    assert read == ["state", "step", "state"]
    assert [told["data"]["step_count"] for told in client.answers] == [0, 0, 0, 1, 1, 1]


@played
async def test_a_client_sends_few_messages_ahead() -> None:
    client = Client()
    for _ in range(100):
        client.says(STATE)
    await client.starts(guarded())
    assert client.closed == [(1008, "too many messages wait for an answer")]
    assert len(client.answers) < 50


@played
async def test_refused_messages_do_not_renew_the_idle_time() -> None:
    client = Client()
    task = client.starts(guarded(idle_s=0.1))
    for _ in range(20):
        client.inbox.put_nowait({"type": "websocket.receive", "bytes": b"x"})
        await asyncio.sleep(0.01)
    await task
    assert client.closed == [(1001, IDLE)]
