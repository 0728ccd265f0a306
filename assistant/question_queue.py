"""Questions to one loaded model, for a server on an event loop.

One question plays at a time, in a thread of its own. Others wait in the order of arrival, and
beyond `WAITING` they are refused. A caller that gives a question up ends it.
`flows/mcp_server.py` asks; `assistant/asking.py` plays.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from assistant.asking import AskedAnswer, AskedModel, answer_event
from tasks.errors import PipelineError

if TYPE_CHECKING:
    from agent.rollouts.progress import Event

logger = logging.getLogger(__name__)

WAITING = 64
"""Questions that wait for their turn."""
FAILED = "The server failed; its terminal says why. Ask again."


class QueueFullError(Exception):
    """Too many questions wait."""


class QuestionQueue:
    """Takes questions; all methods run on the event loop.

    Args:
        answers: answers a question, in any thread, as `Ask` does.
        model: its model.
    """

    def __init__(self, answers: Callable[..., AskedAnswer], model: AskedModel) -> None:
        self.answers, self.model = answers, model
        self.turn = asyncio.Lock()
        """Held by the question that plays; others get it in the order of arrival."""
        self.open: set[OpenQuestion] = set()
        """Questions that wait or are played."""

    def take(self, text: str, documents: Mapping[str, str]) -> OpenQuestion:
        """Take a question; the caller closes it in any case.

        Raises:
            QueueFullError: too many questions wait.
        """
        if len(self.open) > WAITING:
            raise QueueFullError(f"{len(self.open)} questions wait or are played. Ask again later.")
        return OpenQuestion(self, text, documents)


class OpenQuestion:
    """A question that waits or is played.

    Args:
        queue: where it was asked.
        text: the question.
        documents: text by name.
    """

    def __init__(self, queue: QuestionQueue, text: str, documents: Mapping[str, str]) -> None:
        self._queue, self._text, self._documents = queue, text, documents
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

    def close(self) -> None:
        """Stop the work, if it has not ended; the next one plays when the model notices."""
        self._stop.set()
        if not self._is_played:
            self._task.cancel()

    async def _turn(self) -> None:
        """Wait for the turn, and hold it until the thread ends."""
        async with self._queue.turn:
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
            result = answers(self._text, self._documents, watch=tell, stop=self._stop)
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
