"""Questions of many clients to one loaded model, for servers on an event loop.

Each question is played in a thread of its own. Questions beyond those that the model plays at the
same time wait in the order of arrival, and beyond `WAITING` they are refused. A client that leaves
ends its question. `chat_page.py` and `openai_api.py` are the applications; `assistant/asking.py`
plays.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from assistant.asking import AskedAnswer, AskedModel, answer_event
from env.web.logs import limit_repeats
from env.web.protocol import WholeBodies, raise_descriptors
from tasks.errors import PipelineError

if TYPE_CHECKING:
    from agent.rollouts.progress import Event

logger = logging.getLogger(__name__)

WAITING = 64
"""Questions that wait for their turn."""
BEAT_S = 15.0
"""Seconds of silence after which a stream sends an empty comment: proxies cut silent streams."""
REQUEST_S = 10.0
"""Seconds for the head of a request: connections without one would take all descriptors."""
ENDED = "The server ends. Start it again to ask."
FAILED = "The server failed; its terminal says why. Ask again."


class QueueFullError(Exception):
    """Too many questions wait."""


class QuestionQueue:
    """Takes questions; all methods run on the event loop.

    Args:
        answers: answers a question, in any thread, as `Ask` does.
        model: its model.
        at_once: questions that it plays at the same time.
    """

    def __init__(
        self, answers: Callable[..., AskedAnswer], model: AskedModel, at_once: int
    ) -> None:
        self.answers, self.model, self.at_once = answers, model, at_once
        # The loop keeps the order; a thread that waited in `answers` could lose its turn.
        self.places = asyncio.Semaphore(at_once)
        self.open: set[OpenQuestion] = set()
        """Questions that wait or are played."""

    def take(self, text: str, documents: Mapping[str, str], seed: int = 0) -> OpenQuestion:
        """Take a question; the caller closes it in any case.

        Raises:
            QueueFullError: too many questions wait.
        """
        if len(self.open) >= self.at_once + WAITING:
            raise QueueFullError(f"{len(self.open)} questions wait or are played. Ask again later.")
        return OpenQuestion(self, text, documents, seed)

    def end(self) -> None:
        """End all questions with an error."""
        for question in list(self.open):
            question.end(ENDED)


class OpenQuestion:
    """A question that waits or is played.

    Args:
        queue: where it was asked.
        text: the question.
        documents: text by name.
        seed: sampling seed.
    """

    def __init__(
        self, queue: QuestionQueue, text: str, documents: Mapping[str, str], seed: int
    ) -> None:
        self._queue, self._text, self._documents, self._seed = queue, text, documents, seed
        self.found: AskedAnswer | None = None
        """The answer, after the event `answer`."""
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stop = threading.Event()
        self._is_played = False
        self._loop = asyncio.get_running_loop()
        queue.open.add(self)
        self._task = asyncio.create_task(self._turn())
        self._task.add_done_callback(lambda _: queue.open.discard(self))

    async def events(self, every_s: float) -> AsyncGenerator[Event | None, None]:
        """Events of `agent/rollouts/progress.py`, then `answer` or `error`.

        Args:
            every_s: seconds without an event after which it yields None.
        """
        is_last = False
        while not is_last:
            try:
                async with asyncio.timeout(every_s):
                    event = await self._events.get()
            except TimeoutError:
                yield None
                continue
            is_last = event["event"] in ("answer", "error")
            yield event

    def end(self, reason: str) -> None:
        """Give it up with an error."""
        self._events.put_nowait({"event": "error", "message": reason})
        self.close()

    def close(self) -> None:
        """Stop the work, if it has not ended; its place is free when the model notices."""
        self._stop.set()
        if not self._is_played:
            self._task.cancel()

    async def _turn(self) -> None:
        """Wait for a place, and hold it until the thread ends."""
        async with self._queue.places:
            self._is_played = True
            ended = asyncio.Event()
            # A daemon: a request that an endpoint never answers must not outlive the command.
            threading.Thread(target=self._play, args=(ended,), name="question", daemon=True).start()
            await ended.wait()

    def _play(self, ended: asyncio.Event) -> None:
        def tell(event: Event) -> None:
            self._call(self._events.put_nowait, event)

        answers, model = self._queue.answers, self._queue.model
        try:
            result = answers(self._text, self._documents, self._seed, watch=tell, stop=self._stop)
            self.found = result
            tell(answer_event(result, model))
        except PipelineError as error:
            tell({"event": "error", "message": str(error)})
        except Exception:
            logger.exception("a question failed")
            tell({"event": "error", "message": FAILED})
        self._call(ended.set)

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody listens
            self._loop.call_soon_threadsafe(function, *arguments)


class EventStream(StreamingResponse):
    """Server-sent events about a question, which is closed when the client leaves.

    Args:
        question: the question.
        write: text of an event.
        headers: headers of the response.
    """

    def __init__(
        self, question: OpenQuestion, write: Callable[[Event], str], headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            self._texts(question, write), media_type="text/event-stream", headers=headers
        )
        self._question = question

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, as ASGI defines it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._question.close()

    async def _texts(
        self, question: OpenQuestion, write: Callable[[Event], str]
    ) -> AsyncIterator[str]:
        async with aclosing(question.events(BEAT_S)) as events:
            async for event in events:
                yield ":\n\n" if event is None else write(event)


class TimedProtocol(WholeBodies):
    """A connection, closed when no request arrives in time; an answer may take any time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._close_without_request(None)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._close_without_request(answered)

    def _close_without_request(self, answered: object) -> None:
        def close() -> None:
            if self.cycle is answered:
                self.transport.close()

        self.loop.call_later(REQUEST_S, close)


SERVING: dict[str, Any] = {
    "http": TimedProtocol,
    "lifespan": "off",
    "ws": "none",
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": 2,
}
"""Arguments of uvicorn."""


class QuestionServer(uvicorn.Server):
    """Serves an application; a signal ends its questions, and then the server, within seconds.

    Args:
        queue: questions of the application.
        application: what it serves.
    """

    def __init__(self, queue: QuestionQueue, application: ASGIApp) -> None:
        super().__init__(uvicorn.Config(application, **SERVING))
        self._queue = queue
        raise_descriptors()
        limit_repeats()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Report the end to the clients that wait, then stop."""
        self._queue.end()
        await super().shutdown(sockets)
