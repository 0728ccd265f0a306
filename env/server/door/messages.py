"""Checks of what a client sends, before pydantic or OpenEnv reads it.

OpenEnv's loop parses a message with plain `json`, reads it as a dict, and writes refused input back
with every error of pydantic. So the size, the structure and the types are checked here, and a
refusal is short: it contains nothing of the input.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from env.models import MAX_TURNS, MESSAGE_BYTES, FrameTurn, RLMAction, WSErrorCode
from env.settings import DOCUMENT_CHARS, EnvSettings

_MAX_DEPTH = 32
"""Nesting levels of a message; a client's own papers need four."""
_MAX_VALUES = 50_000
"""Lists, objects and members of a message: a short text of empty lists costs seconds."""
_MAX_KEYS = 16
"""Keys of an action, of a turn and of the arguments of `reset`."""
_MAX_ERRORS = 5
_ESCAPED = 12
"""Bytes of one character as two escapes, such as `\\ud83d\\ude00`."""

_KEYS = {"reset": {"type", "data"}, "step": {"type", "data"}, "state": {"type"}, "close": {"type"}}
_OF_REQUESTS = "action body data episode_id index request_id seed split start stop timeout_s type"
_NAMES = {*RLMAction.model_fields, *FrameTurn.model_fields, *_OF_REQUESTS.split()}
"""Fields that an error may name; any other name was chosen by the client."""


def message_bytes(settings: EnvSettings) -> int:
    """Limit of one WebSocket message: larger where a client may send its own papers."""
    return MESSAGE_BYTES + _ESCAPED * (DOCUMENT_CHARS if settings.allow_documents else 0)


def refusal(text: str | None) -> dict[str, Any] | None:
    """Data of the error that answers a message; None if OpenEnv's loop may read it."""
    if text is None:
        return _error(WSErrorCode.INVALID_JSON, "a message is text, not binary")
    value, reason = parsed(text)
    if reason is not None:
        return _error(WSErrorCode.INVALID_JSON, reason)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        says = f"type is one of {', '.join(_KEYS)}; this environment has no MCP"
        return _error(WSErrorCode.UNKNOWN_TYPE, says)
    errors: list[dict[str, Any]] = []
    data = value.get("data", {} if kind == "reset" else None)
    if not value.keys() <= _KEYS[kind]:
        errors = _fault(f"a message {kind} has only the keys {', '.join(sorted(_KEYS[kind]))}")
    elif kind == "step":
        errors = action_errors(data)
    elif kind == "reset" and not _is_small(data):
        errors = _fault(f"data is an object with at most {_MAX_KEYS} keys", "data")
    if errors:
        return {**_error(WSErrorCode.VALIDATION_ERROR, "Invalid message"), "errors": errors}
    return None


def parsed(text: str) -> tuple[dict[str, Any], str | None]:
    """The JSON object, and the reason why it is refused or None."""
    if _has_many_values(text):
        return {}, f"a message has at most {_MAX_VALUES} values"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}, "a message is one JSON object, not nested deeply"
    if not isinstance(value, dict):
        return {}, "a message is a JSON object"
    if not _is_shallow(value):
        return {}, f"a message has at most {_MAX_DEPTH} levels"
    if "\\u" in text and not _is_unicode(value):
        return {}, "a message holds no lone surrogates"
    return value, None


def action_errors(data: Any) -> list[dict[str, Any]]:
    """Why `data` is not an action: at most five errors; empty if it is one."""
    if not _is_small(data):
        return _fault(f"an action is an object with at most {_MAX_KEYS} keys", "data")
    turns = data.get("turns", [])
    if not isinstance(turns, list) or len(turns) > MAX_TURNS or not all(map(_is_small, turns)):
        return _fault(f"turns is a list of at most {MAX_TURNS} small objects", "turns")
    try:
        RLMAction.model_validate(data)
    except ValidationError as error:
        return short(error.errors(include_url=False, include_context=False, include_input=False))
    return []


def short(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """The first of pydantic's errors, without anything that the client wrote."""
    return [
        {
            "type": error["type"],
            "loc": [p if isinstance(p, int) or p in _NAMES else "?" for p in error["loc"]],
            "msg": error["msg"],
        }
        for error in errors[:_MAX_ERRORS]
    ]


def _error(code: WSErrorCode, message: str) -> dict[str, Any]:
    return {"message": message, "code": code.value}


def _fault(message: str, *loc: str) -> list[dict[str, Any]]:
    return [{"type": "structure", "loc": list(loc), "msg": message}]


def _is_small(value: Any) -> bool:
    return isinstance(value, dict) and len(value) <= _MAX_KEYS


def _has_many_values(text: str) -> bool:
    """Whether brackets and commas outside strings are too many; parses nothing."""
    if len(text) <= _MAX_VALUES:
        return False
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') > 4 * _MAX_VALUES:
        return True
    return sum(part.count(mark) for part in bare.split('"')[::2] for mark in ",[{") > _MAX_VALUES


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
