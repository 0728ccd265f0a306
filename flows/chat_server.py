"""The server behind the page of `rlm chat`: documents, and answers as server-sent events.

`POST /api/ask` streams the events of `agent/rollouts/progress.py`, then one `answer` or `error`.
The page is the folder `page/`. Documents and model output are hostile: they travel as JSON or plain
text, and the page sets them as text. Neighbours: `chat.py` is the command, `tasks/asking.py` plays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from env.guard.bodies import BodyLimit
from env.guard.origin import SameOrigin
from tasks.asking import Ask, AskedModel, answer_event
from tasks.errors import StageError

if TYPE_CHECKING:
    from agent.rollouts.progress import Event

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
BODY_BYTES = 256_000
ENDED = "rlm chat ends. Start it again to ask."
HEADERS = {
    # Only its own files are allowed, and no other page may show or load any of it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Chat:
    """A model and the documents that it is asked about, for one page.

    Args:
        ask: answers questions, in many threads.
        model: model of `ask`.
        documents: text by name.
    """

    def __init__(self, ask: Ask, model: AskedModel, documents: Mapping[str, str]) -> None:
        self._ask, self._model, self._documents = ask, model, documents
        self._running: set[PageQuestion] = set()

    def application(self) -> ASGIApp:
        """The page and its API, for pages of this machine alone."""
        routes = [_file(path, name, kind) for path, (name, kind) in FILES.items()]
        routes += [
            Route("/api/documents", self.list_documents, methods=["GET"]),
            Route("/api/documents/{name:path}", self.read_document, methods=["GET"]),
            Route("/api/ask", self.answer, methods=["POST"]),
        ]
        limits = [
            Middleware(SameOrigin),
            Middleware(BodyLimit, limit=BODY_BYTES, refuse=_refusal),
        ]
        return Starlette(routes=routes, middleware=limits)

    async def list_documents(self, _: Request) -> Response:
        """Name of the model; names of the documents and their sizes in characters."""
        sizes = [{"name": name, "size": len(text)} for name, text in self._documents.items()]
        body = {"model": self._model.name, "documents": sizes}
        return JSONResponse(body, headers=HEADERS)

    async def read_document(self, request: Request) -> Response:
        """Text of a document."""
        text = self._documents.get(request.path_params["name"])
        if text is None:
            return _refusal(404, "no document of that name was read")
        return PlainTextResponse(text, headers=HEADERS)

    async def answer(self, request: Request) -> Response:
        """Events of one question; it is given up when the client leaves."""
        try:
            text = (await request.json())["question"]
        except (ValueError, RecursionError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            return _refusal(422, 'the body is JSON such as {"question": "Who pays the rent?"}')
        question = PageQuestion(self._ask, self._model, text, self._documents)
        events = self._events(question)
        return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)

    def end(self) -> None:
        """Give up all questions, in any thread."""
        for question in list(self._running):
            question.end()

    async def _events(self, question: PageQuestion) -> AsyncIterator[str]:
        self._running.add(question)
        question.begin()
        try:
            while (event := await question.told.get()) is not None:
                yield f"data: {json.dumps(event)}\n\n"
        finally:  # also when the client has left
            self._running.discard(question)
            question.stop.set()


class PageQuestion:
    """One question in a thread of its own; made in the server's loop.

    Args:
        ask: answers it.
        model: model of `ask`.
        text: the question.
        documents: text by name.
    """

    def __init__(
        self, ask: Ask, model: AskedModel, text: str, documents: Mapping[str, str]
    ) -> None:
        self._ask, self._model, self._text, self._documents = ask, model, text, documents
        self._loop = asyncio.get_running_loop()
        self.told: asyncio.Queue[Event | None] = asyncio.Queue()
        """Events; None after the last one."""
        self.stop = threading.Event()
        """Set when nobody waits for the answer."""

    def begin(self) -> None:
        """Start the thread."""
        # A daemon: a request that an endpoint never answers must not outlive the command.
        threading.Thread(target=self._play, name="question", daemon=True).start()

    def end(self) -> None:
        """End with an error, in any thread."""
        self.stop.set()
        self._tell({"event": "error", "message": ENDED})
        self._tell(None)

    def _play(self) -> None:
        try:
            found = self._ask(self._text, self._documents, watch=self._tell, stop=self.stop)
            prices = self._model.params.evaluate_model
            cost = found.usage and found.usage.cost(prices.prompt_price, prices.completion_price)
            self._tell(answer_event(found, self._model.name) | {"cost": cost or None})
        except StageError as error:
            self._tell({"event": "error", "message": str(error)})
        except Exception:
            logger.exception("a question failed")
            message = "rlm chat failed; its terminal says why. Ask again."
            self._tell({"event": "error", "message": message})
        finally:
            self._tell(None)

    def _tell(self, event: Event | None) -> None:
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self.told.put_nowait, event)


class ChatServer(uvicorn.Server):
    """Serves a chat; a signal gives up its questions and ends it within seconds.

    Args:
        chat: what it serves.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        application = chat.application()
        super().__init__(
            uvicorn.Config(
                application,
                lifespan="off",
                ws="none",
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._chat.end()
        super().handle_exit(sig, frame)


def _file(path: str, name: str, kind: str) -> Route:
    content = (FOLDER / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return Route(path, answer, methods=["GET"])


def _refusal(status: int, reason: Any) -> Response:
    return PlainTextResponse(f"{reason}\n", status, headers=HEADERS)
