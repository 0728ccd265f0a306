"""OpenAI's chat completions over collections of documents: the application of `rlm serve`.

The model of a request names the collection, and the user's last message is the question. The text
of the answer has the quotes. Progress in a stream is comments, which OpenAI's clients ignore.
The field `rlm` of an answer has quotes, positions and counters as data. Neighbours: `serve.py` is
the command, `question_queue.py` takes the questions.
"""

from __future__ import annotations

import hmac
import json
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.rollouts import own_documents
from assistant.asking import AskedAnswer, verdict
from assistant.question_queue import (
    FAILED,
    EventStream,
    OpenQuestion,
    QuestionQueue,
    QueueFullError,
)
from env.web.bodies import BodyLimit
from env.web.origin import SameOrigin

if TYPE_CHECKING:
    from agent.rollouts.own_documents import Answer
    from agent.rollouts.progress import Event

BODY_BYTES = 1_000_000
"""Bytes of a request; clients send whole conversations."""
LARGEST_SEED = 2**31 - 1
KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
}
"""Type of an error by its status; others are `invalid_request_error`."""
_LEFT_S = 1.0
"""Seconds after which the server notices that a client without a stream has left."""
_STREAM = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


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

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED)
    n: int | None = Field(None, ge=1, le=1)


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
        kind = KINDS.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        """The error in OpenAI's form."""

    def response(self) -> Response:
        """The whole answer. Clients try again by themselves only when too many questions wait."""
        headers = {"x-should-retry": "true" if self.status == 429 else "false"}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


class Completions:
    """Routes of the server.

    Args:
        queue: takes the questions.
        collections: text by document, by the collection's name.
    """

    def __init__(self, queue: QuestionQueue, collections: Mapping[str, Mapping[str, str]]) -> None:
        self._queue, self._collections = queue, collections
        self._started = int(time.time())

    def application(self, key: str | None) -> ASGIApp:
        """The routes behind the guard.

        Args:
            key: key that each request must show; None: no key.
        """
        guard = [Middleware(SameOrigin)]
        guard += [Middleware(KeyRequired, key=key)] if key else []
        guard += [Middleware(BodyLimit, limit=BODY_BYTES, refuse=_refused_body)]
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.list_models, methods=["GET"]),
                Route("/v1/models/{name:path}", self.show_model, methods=["GET"]),
            ],
            middleware=guard,
            exception_handlers={
                ApiError: _api_error,
                HTTPException: _http_error,
                Exception: _internal_error,
            },
        )

    async def list_models(self, _: Request) -> Response:
        """One model for each collection."""
        return JSONResponse({"object": "list", "data": [*map(self._model, self._collections)]})

    async def show_model(self, request: Request) -> Response:
        """One of the models."""
        return JSONResponse(self._model(request.path_params["name"]))

    async def complete(self, request: Request) -> Response:
        """Answer a question, in one piece or as a stream."""
        asked = _read(await request.body())
        documents, text = self._documents(asked.model), _question(asked)
        task = own_documents.Question(text, documents)
        if reason := own_documents.fault(task, self._queue.model.params.env):
            raise ApiError(400, reason)
        try:
            question = self._queue.take(text, documents, asked.seed or 0)
        except QueueFullError as error:
            raise ApiError(429, str(error), "queue_full") from None
        completion = Completion(asked, question)
        if asked.stream:
            return EventStream(question, completion.part, _STREAM)
        try:
            async with aclosing(question.events(_LEFT_S)) as events:
                async for event in events:
                    if event is not None and event["event"] in ("answer", "error"):
                        return completion.whole(event)
                    if await request.is_disconnected():
                        break
        finally:
            question.close()
        return Response(status_code=499)  # the client has gone

    def _model(self, name: str) -> dict[str, Any]:
        documents = self._documents(name)
        about = {
            "model": self._queue.model.name,
            "documents": len(documents),
            "characters": sum(map(len, documents.values())),
        }
        head = {"id": name, "object": "model", "created": self._started, "owned_by": "rlm"}
        return head | {"rlm": about}

    def _documents(self, model: str) -> Mapping[str, str]:
        if model not in self._collections:
            raise ApiError(
                404,
                f"model {model[:100]!r} does not exist. The model names a collection of documents, "
                f"one of: {', '.join(self._collections)}",
                "model_not_found",
            )
        return self._collections[model]


class Completion:
    """Answer to one request in OpenAI's form.

    Args:
        asked: the request.
        question: its question.
    """

    def __init__(self, asked: ChatRequest, question: OpenQuestion) -> None:
        self._question = question
        self._with_usage = asked.stream_options and asked.stream_options.include_usage
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": asked.model,
        }

    def whole(self, event: Event) -> Response:
        """The answer in one piece, from the last event."""
        if event["event"] == "error":
            return _failure(event).response()
        result = self._found()
        message = {"role": "assistant", "content": answer_text(result.answer)}
        choice = {"index": 0, "message": message, "finish_reason": _finish(result)}
        return JSONResponse(
            self._head
            | {"object": "chat.completion", "choices": [choice]}
            | {"usage": usage(result), "rlm": _details(event)}
        )

    def part(self, event: Event) -> str:
        """Part of the stream: progress as a comment, the answer as a chunk and the end."""
        if event["event"] == "error":
            return _data(_failure(event).body)
        if event["event"] != "answer":
            return f": {json.dumps(event)}\n\n"
        result = self._found()
        delta = {"role": "assistant", "content": answer_text(result.answer)}
        choice = {"index": 0, "delta": delta, "finish_reason": _finish(result)}
        chunk = self._head | {"object": "chat.completion.chunk"}
        text = _data(chunk | {"choices": [choice], "rlm": _details(event)})
        if self._with_usage:
            text += _data(chunk | {"choices": [], "usage": usage(result)})
        return f"{text}data: [DONE]\n\n"

    def _found(self) -> AskedAnswer:
        assert self._question.found is not None  # after the event `answer`
        return self._question.found


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
        if hmac.compare_digest(shown, self._expected):
            await self._app(scope, receive, send)
            return
        error = ApiError(401, "the key is missing or wrong. Set it as api_key.", "invalid_api_key")
        await error.response()(scope, receive, send)


def answer_text(answer: Answer) -> str:
    """The sentence and the quotes with their places, or why it has none.

    A page shows the text as Markdown, so each is fenced: an image in a quote would tell its host.
    """
    texts = [f"The model says: {answer.sentence}"] if answer.sentence else []
    texts += [
        f"{quote.text}\n\n{quote.document}, characters {quote.start}-{quote.end}"
        for quote in answer.evidence
    ]
    fences = ["`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0)) for text in texts]
    fenced = [f"{fence}\n{text}\n{fence}" for fence, text in zip(fences, texts, strict=True)]
    unread = [] if answer.turns else ["Ranked passages; no model read them."]
    return "\n\n".join([*unread, *fenced] if fenced else [verdict(answer)])


def usage(result: AskedAnswer) -> dict[str, int]:
    """Tokens that all agents read and wrote."""
    if result.usage is not None:
        read, written = result.usage.prompt_tokens, result.usage.completion_tokens
    else:
        turns = [
            turn
            for frame in (result.episode.frames if result.episode else {}).values()
            for turn in frame.turns
        ]
        read = sum(len(turn.prompt_ids) for turn in turns)
        written = sum(len(turn.sampled_ids) for turn in turns)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _read(body: bytes) -> ChatRequest:
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the body"
        raise ApiError(400, f"{place}: {fault['msg']}") from None


def _question(asked: ChatRequest) -> str:
    """Text of the user's last message."""
    contents = [message.content for message in asked.messages if message.role == "user"]
    if not contents:
        raise ApiError(400, "messages: the last message of the role user is the question; add one")
    content = contents[-1] or ""
    if isinstance(content, str):
        return content
    if any(part.type != "text" for part in content):
        raise ApiError(400, "messages: only text can be read, not images, audio or files")
    return "\n".join(part.text for part in content)


def _finish(result: AskedAnswer) -> str:
    return "stop" if result.answer.stop_reason == "final" else "length"


def _details(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "event"}


def _failure(event: Event) -> ApiError:
    return ApiError(502, event["message"], "question_failed")


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _refused_body(status: int, reason: Any) -> Response:
    return ApiError(status, str(reason)).response()


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}. Ask /v1/models first."
    return ApiError(error.status_code, message).response()


async def _internal_error(_: Request, __: Exception) -> Response:
    return ApiError(500, FAILED).response()
