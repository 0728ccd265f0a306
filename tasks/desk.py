"""Questions of many clients to one model, for servers on an event loop.

Each question is played in a thread of its own. Questions beyond those that the model plays at the
same time wait in the order of arrival, and beyond `WAITING` they are refused. A client that leaves
stops its question. Neighbour: `asking.py` plays.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tasks.asking import Ask, AskedAnswer, answer_event
from tasks.errors import PipelineError, StageError

if TYPE_CHECKING:
    from agent.rollouts.progress import Event

logger = logging.getLogger(__name__)

WAITING = 64
"""Questions that wait for their turn."""


class DeskBusyError(Exception):
    """Too many questions wait."""


class Desk:
    """Takes questions; all methods run on the event loop.

    Args:
        ask: answers a question, in any thread.
        model: name of its model, for the answers.
        waiting: questions that may wait.
    """

    def __init__(self, ask: Ask, model: str, waiting: int = WAITING) -> None:
        self.ask, self.model = ask, model
        self.places = asyncio.Semaphore(ask.at_once)
        self.open: set[Enquiry] = set()
        """Questions that wait or are played."""
        self._most = ask.at_once + waiting

    def enquire(self, question: str, documents: Mapping[str, str], seed: int = 0) -> Enquiry:
        """Take a question; iterate over its events, and close it in any case.

        Raises:
            DeskBusyError: too many questions wait.
        """
        if len(self.open) >= self._most:
            raise DeskBusyError(f"{len(self.open)} questions wait or are played; try again later")
        return Enquiry(self, question, documents, seed)

    def end(self, reason: str) -> None:
        """End all questions with an error."""
        for enquiry in list(self.open):
            enquiry.end(reason)


class Enquiry:
    """Events of one question: those of `agent/rollouts/progress.py`, then `answer` or `error`.

    Args:
        desk: where it was asked.
        question: the question.
        documents: text by name.
        seed: sampling seed.
    """

    def __init__(self, desk: Desk, question: str, documents: Mapping[str, str], seed: int) -> None:
        self._desk, self._question, self._documents, self._seed = desk, question, documents, seed
        self.found: AskedAnswer | None = None
        """The answer, after the event `answer`."""
        self.failure: Exception | None = None
        """What ended it, after the event `error`."""
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stop = threading.Event()
        self._playing = self._over = False
        self._loop = asyncio.get_running_loop()
        desk.open.add(self)
        self._task = asyncio.create_task(self._turn())

    def __aiter__(self) -> Enquiry:
        """Iterate over the events."""
        return self

    async def __anext__(self) -> Event:
        """The next event."""
        if self._over:
            raise StopAsyncIteration
        event = await self._events.get()
        self._over = event["event"] in ("answer", "error")
        return event

    async def last(self) -> Event:
        """The event `answer` or `error`."""
        return [event async for event in self][-1]

    def end(self, reason: str) -> None:
        """Give it up with an error."""
        self.failure = StageError(reason)
        self._events.put_nowait({"event": "error", "message": reason})
        self._stop.set()

    async def aclose(self) -> None:
        """Stop the work, if it has not ended; its place is free when the model notices."""
        self._stop.set()
        if not self._playing:
            self._task.cancel()

    async def _turn(self) -> None:
        """Wait for a place, and hold it until the thread ends."""
        ended = asyncio.Event()
        try:
            async with self._desk.places:
                self._playing = True
                # A daemon, since a request to an endpoint must not outlive the program.
                threading.Thread(target=self._play, args=(ended,), daemon=True).start()
                await ended.wait()
        finally:
            self._desk.open.discard(self)

    def _play(self, ended: asyncio.Event) -> None:
        def tell(event: Event) -> None:
            self._call(self._events.put_nowait, event)

        try:
            found = self._desk.ask(
                self._question, self._documents, self._seed, watch=tell, stop=self._stop
            )
            self.found, last = found, answer_event(found, self._desk.model)
        except Exception as error:
            self.failure, message = error, str(error)
            if not isinstance(error, PipelineError):
                logger.exception("a question failed")
                message = "internal error of the server; its log says more"
            last = {"event": "error", "message": message}
        tell(last)
        self._call(ended.set)

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody listens
            self._loop.call_soon_threadsafe(function, *arguments)
