"""Filter of messages to and from OpenEnv's WebSocket loop.

The loop parses a message with plain `json`, reads it as a dict, and writes refused input back. An
array, a number of 5,000 digits, deep nesting, a lone surrogate or a binary frame ends the session
with the text of an exception. This filter answers such a message with an error of the protocol,
and the session continues. Errors that contain the text of an exception are logged, and the client
receives a fixed sentence.
"""

from __future__ import annotations

import env.without_gradio  # noqa: F401  before openenv

# isort: split
import json
import logging
from typing import Any

from openenv.core.env_server.types import WSErrorCode, WSErrorResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

INTERNAL = "internal error of the server"

_MAX_DEPTH = 32
"""Nesting levels of a message; a client's own papers need four."""

_OWN_WORDS = (WSErrorCode.EXECUTION_ERROR, WSErrorCode.SESSION_ERROR, WSErrorCode.FACTORY_ERROR)
"""Errors whose message is `str(exception)`."""


class Guard:
    """Middleware between the WebSocket and OpenEnv's loop on `/ws`; other requests pass.

    Args:
        app: application behind the guard.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "websocket" or scope["path"] != "/ws":
            await self._app(scope, receive, send)
            return

        async def checked() -> Message:
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                reason = refusal(message.get("text"))
                if reason is None:
                    return message
                answer = WSErrorResponse(data={"message": reason, "code": WSErrorCode.INVALID_JSON})
                await send({"type": "websocket.send", "text": answer.model_dump_json()})

        async def silent(message: Message) -> None:
            text = message.get("text")
            if text is not None and text.startswith('{"type":"error"'):
                message = {**message, "text": _without_exception(text)}
            await send(message)

        await self._app(scope, checked, silent)


def refusal(text: str | None) -> str | None:
    """Reason why a message breaks the protocol; None if OpenEnv's loop may read it."""
    if text is None:
        return "a message is text, not binary"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "a message is one JSON object, not nested deeply"
    if not isinstance(value, dict):
        return "a message is a JSON object"
    if not _is_shallow(value):
        return f"a message has at most {_MAX_DEPTH} levels"
    if "\\u" in text and not _is_unicode(value):
        return "a message holds no lone surrogates"
    return None


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return False


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_exception(text: str) -> str:
    answer = WSErrorResponse.model_validate_json(text)
    if answer.data.get("code") not in _OWN_WORDS:
        return text
    logger.error("session failed: %s", answer.data.get("message"))
    return answer.model_copy(
        update={"data": {"message": INTERNAL, "code": answer.data["code"]}}
    ).model_dump_json()
