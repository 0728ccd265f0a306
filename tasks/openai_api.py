"""OpenAI's chat completions over collections of documents: a server.

The question is the last message of the user, and the answer's text has the quotes. A client names
the collection by the model `rlm/NAME` or by the field `collection`. A stream has progress as
comments, which clients of OpenAI ignore, and the answer as one chunk. Neighbours: `desk.py` takes
the questions; `env/guard` refuses foreign pages and long bodies.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import uvicorn
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from env.guard.bodies import BodyLimit
from env.guard.origin import SameOrigin
from tasks.asking import AskedAnswer, verdict
from tasks.desk import Desk, DeskBusyError, Enquiry
from tasks.errors import PipelineError

if TYPE_CHECKING:
    from agent.rollouts.own_documents import Answer

BODY_BYTES = 1_000_000
"""Bytes of a request; clients send whole conversations."""
PREFIX = "rlm"
_RETRY_S = 10
"""Seconds after which a client that was refused may try again."""
SERVING: dict[str, Any] = {
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": 2,
    "ws": "none",
}
"""Arguments of uvicorn."""


class MessagePart(BaseModel):
    """Part of a message; only text can be read."""

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """Message of a conversation."""

    role: str
    content: str | list[MessagePart] | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """Body of a request; other fields of OpenAI are ignored."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: str = PREFIX
    collection: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    n: int | None = None


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: what is wrong and how to fix it.
        code: OpenAI's code, which programs read.
    """

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "api_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, kind)
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        """The error in OpenAI's form."""

    def response(self) -> Response:
        """The whole answer. Clients try again by themselves only when too many questions wait."""
        busy = self.status == 429
        headers = {"retry-after": str(_RETRY_S)} if busy else {"x-should-retry": "false"}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


class ApiServer(uvicorn.Server):
    """The server, which ends its questions when it stops.

    Args:
        desk: answers the questions.
        collections: text by document, by the collection's name.
        key: key that each request must show; None: no key.
    """

    def __init__(
        self, desk: Desk, collections: Mapping[str, Mapping[str, str]], key: str | None = None
    ) -> None:
        app = Completions(desk, collections).application(key)
        super().__init__(uvicorn.Config(app, **SERVING))
        self._desk = desk

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell the clients that wait, then stop."""
        self._desk.end("the server stops; ask again when it runs")
        await super().shutdown(sockets)


class Completions:
    """Routes of the server; see `ApiServer`."""

    def __init__(self, desk: Desk, collections: Mapping[str, Mapping[str, str]]) -> None:
        self._desk, self._collections = desk, collections
        self._started = int(time.time())

    def application(self, key: str | None) -> ASGIApp:
        """The routes behind the guard."""
        guard = [Middleware(SameOrigin)]
        guard += [Middleware(KeyRequired, key=key)] if key else []
        guard += [
            Middleware(
                BodyLimit,
                limit=BODY_BYTES,
                refuse=lambda status, detail: ApiError(status, str(detail)).response(),
            )
        ]
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.list_models, methods=["GET"]),
                Route("/v1/models/{name:path}", self.show_model, methods=["GET"]),
            ],
            middleware=guard,
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        )

    async def list_models(self, _: Request) -> Response:
        """One model for each collection."""
        return JSONResponse(
            {"object": "list", "data": [self._model(name) for name in self._collections]}
        )

    async def show_model(self, request: Request) -> Response:
        """One of the models."""
        try:
            return JSONResponse(self._model(self._chosen(request.path_params["name"], None)))
        except ApiError as error:
            return error.response()

    async def complete(self, request: Request) -> Response:
        """Answer a question, in one piece or as a stream."""
        try:
            asked = _read(await request.body())
            name = self._chosen(asked.model, asked.collection)
            question = _question(asked)
            if reason := self._desk.ask.fault(question):
                raise ApiError(400, reason)
            try:
                enquiry = self._desk.enquire(question, self._collections[name], asked.seed or 0)
            except DeskBusyError as error:
                raise ApiError(429, str(error), "queue_full") from None
            completion = Completion(name)
            if asked.stream:
                usage = bool(asked.stream_options and asked.stream_options.include_usage)
                return ClosedStream(completion.stream(enquiry, usage), enquiry)
            return await _unless_gone(completion.whole(enquiry), enquiry, request.receive)
        except ApiError as error:
            return error.response()

    def _model(self, name: str) -> dict[str, Any]:
        documents = self._collections[name]
        about = {
            "model": self._desk.model,
            "documents": len(documents),
            "characters": sum(map(len, documents.values())),
        }
        return {
            "id": f"{PREFIX}/{name}",
            "object": "model",
            "created": self._started,
            "owned_by": PREFIX,
            "rlm": about,
        }

    def _chosen(self, model: str, collection: str | None) -> str:
        """Name of the collection that a request means.

        Raises:
            ApiError: it does not exist, or several do and none is named.
        """
        known = ", ".join(f"{PREFIX}/{name}" for name in self._collections)
        if collection is None and model != PREFIX:
            prefix, _, collection = model.partition("/")
            if prefix != PREFIX:
                raise ApiError(
                    404, f"model {model!r} does not exist. Use one of: {known}", "model_not_found"
                )
        if collection is None:
            if len(self._collections) == 1:
                return next(iter(self._collections))
            raise ApiError(400, f"name a collection by the model: one of {known}")
        if collection not in self._collections:
            raise ApiError(
                404,
                f"collection {collection!r} does not exist. Use one of the models: {known}",
                "collection_not_found",
            )
        return collection


class Completion:
    """Answer to one request in OpenAI's form.

    Args:
        collection: documents that it is about.
    """

    def __init__(self, collection: str) -> None:
        self._collection = collection
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": f"{PREFIX}/{collection}",
        }

    async def whole(self, enquiry: Enquiry) -> Response:
        """The answer in one piece."""
        event = await enquiry.last()
        if enquiry.found is None:
            return _failure(enquiry, event).response()
        message = {"role": "assistant", "content": answer_text(enquiry.found.answer)}
        choice = {"index": 0, "message": message, "finish_reason": _finish(enquiry.found)}
        return JSONResponse(
            self._head
            | {"object": "chat.completion", "choices": [choice]}
            | {"usage": _usage(enquiry.found), "rlm": self._details(event)}
        )

    async def stream(self, enquiry: Enquiry, usage: bool) -> AsyncIterator[str]:
        """Progress as comments, then the answer as a chunk, then the end of the stream."""
        async for event in enquiry:
            if event["event"] == "error":
                yield _data(_failure(enquiry, event).body)
                return
            if enquiry.found is None or event["event"] != "answer":
                yield f": {json.dumps(event)}\n\n"
                continue
            delta = {"role": "assistant", "content": answer_text(enquiry.found.answer)}
            choice = {"index": 0, "delta": delta, "finish_reason": _finish(enquiry.found)}
            chunk = self._head | {"object": "chat.completion.chunk"}
            yield _data(chunk | {"choices": [choice], "rlm": self._details(event)})
            if usage:
                yield _data(chunk | {"choices": [], "usage": _usage(enquiry.found)})
        yield "data: [DONE]\n\n"

    def _details(self, event: dict[str, Any]) -> dict[str, Any]:
        details = {name: value for name, value in event.items() if name != "event"}
        return details | {"collection": self._collection}


class ClosedStream(StreamingResponse):
    """Stream of events that stops its question when the client leaves.

    Args:
        content: text of the stream.
        enquiry: the question.
    """

    def __init__(self, content: AsyncIterator[str], enquiry: Enquiry) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._enquiry = enquiry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, as ASGI defines it."""
        async with aclosing(self._enquiry):
            await super().__call__(scope, receive, send)


class KeyRequired:
    """Middleware that refuses requests without the key.

    Args:
        app: application behind it.
        key: the key, which a client sends as `Authorization: Bearer KEY`.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        shown = dict(scope.get("headers", [])).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(shown, self._expected):
            await self._app(scope, receive, send)
            return
        error = ApiError(401, "the key is missing or wrong. Set it as api_key.", "invalid_api_key")
        await error.response()(scope, receive, send)


def answer_text(answer: Answer) -> str:
    """The quotes with their places as Markdown, or why there are none."""
    quotes = [
        "\n".join(f"> {line}" for line in quote.text.splitlines())
        + f"\n>\n> {quote.document}, characters {quote.start}-{quote.end}"
        for quote in answer.evidence
    ]
    return "\n\n".join(quotes or [verdict(answer)])


def _read(body: bytes) -> ChatRequest:
    try:
        asked = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the body"
        raise ApiError(400, f"{place}: {fault['msg']}") from None
    if asked.n not in (None, 1):
        raise ApiError(400, "n: only one answer is given; leave it out")
    return asked


def _question(asked: ChatRequest) -> str:
    """Text of the user's last message."""
    for message in reversed(asked.messages):
        if message.role != "user":
            continue
        if not isinstance(message.content, list):
            return message.content or ""
        if any(part.type != "text" for part in message.content):
            raise ApiError(400, "messages: only text can be read, no images, audio or files")
        return "\n".join(part.text for part in message.content)
    raise ApiError(400, "messages: the question is the user's last message, and none has that role")


def _finish(found: AskedAnswer) -> str:
    return "stop" if found.answer.stop_reason == "final" else "length"


def _usage(found: AskedAnswer) -> dict[str, int]:
    """Tokens that all agents read and wrote."""
    if found.usage is not None:
        read, written = found.usage.prompt_tokens, found.usage.completion_tokens
    else:
        turns = [turn for frame in found.episode.frames.values() for turn in frame.turns]
        read = sum(len(turn.prompt_ids) for turn in turns)
        written = sum(len(turn.sampled_ids) for turn in turns)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _failure(enquiry: Enquiry, event: dict[str, Any]) -> ApiError:
    known = isinstance(enquiry.failure, PipelineError)
    return ApiError(502 if known else 500, event["message"], "question_failed")


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _unless_gone(work: Any, enquiry: Enquiry, receive: Receive) -> Response:
    """The answer, or an empty one to a client that has left, whose question is stopped."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    async with aclosing(enquiry):
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else Response(status_code=499)
        finally:
            working.cancel()
            leaving.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}. See /v1/models."
    return ApiError(error.status_code, message).response()


async def _internal_error(_: Request, error: Exception) -> Response:
    return ApiError(500, "internal error of the server; its log says more").response()
