"""Checks of a message: structure, and refusals that are short and echo nothing."""

import json
from typing import Any

import pytest

from env.server.door.messages import action_errors, message_bytes, refusal
from env.settings import DOCUMENT_CHARS, EnvSettings


def step(**data: Any) -> str:
    return json.dumps({"type": "step", "data": data})


TURN = {"frame": 0, "text": "x", "finish": "stop"}


HONEST = [
    *(step(text="x"), '{"type":"state"}', '{"type":"close"}', json.dumps({"type": "reset"})),
    step(turns=[TURN] * 512, metadata={"a": [1, {"b": None}]}),
    step(text="[{," * 100_000 + '\\"'),  # a text is one value
    json.dumps({"type": "reset", "data": {"seed": 0, "unknown": 1}}),
    json.dumps({"type": "reset", "data": {"papers": {f"p{k}": "x, [y]" for k in range(2000)}}}),
]


@pytest.mark.parametrize("message", HONEST)
def test_honest_messages_pass(message: str) -> None:
    assert refusal(message) is None


REFUSED = [
    (None, "INVALID_JSON"),
    ("[]", "INVALID_JSON"),
    ("1" * 5000, "INVALID_JSON"),
    ('{"type":"step","data":{"text":"\\ud800"}}', "INVALID_JSON"),
    ('{"type":"state","data":' + "[" * 40 + "]" * 40 + "}", "INVALID_JSON"),
    ('{"type":"reset","data":{"a":[' + "[]," * 60_000 + "0]}}", "INVALID_JSON"),
    ('{"type":"reset","data":{' + '"a":"b",' * 60_000 + '"c":0}}', "INVALID_JSON"),
    ('{"type":"mcp","data":{}}', "UNKNOWN_TYPE"),
    ('{"type":["step"]}', "UNKNOWN_TYPE"),
    ("{}", "UNKNOWN_TYPE"),
    ('{"type":"step"}', "VALIDATION_ERROR"),
    ('{"type":"state","data":{}}', "VALIDATION_ERROR"),
    (step(turns=[TURN] * 513), "VALIDATION_ERROR"),
    (step(turns=[{}] * 512), "VALIDATION_ERROR"),
    (step(turns=[{str(k): k for k in range(17)}]), "VALIDATION_ERROR"),
    (step(text={"secret" * 99: 1}), "VALIDATION_ERROR"),
    (step(**{"secret" * 99: 1}), "VALIDATION_ERROR"),
    (step(turns=[{**TURN, "finish": "secret" * 99}] * 500), "VALIDATION_ERROR"),
]


@pytest.mark.parametrize(("message", "code"), REFUSED)
def test_a_refusal_is_short_and_echoes_nothing(message: str | None, code: str) -> None:
    told = refusal(message)
    assert told["code"] == code
    answer = json.dumps(told)
    assert len(answer) < 1000
    assert "secret" not in answer
    assert "http" not in answer
    assert len(told.get("errors", [])) <= 5


def test_an_error_names_the_field() -> None:
    (error,) = action_errors({"turns": [TURN, {"frame": 0}]})
    assert error == {"type": "missing", "loc": ["turns", 1, "text"], "msg": "Field required"}


def test_only_own_papers_make_messages_large() -> None:
    assert message_bytes(EnvSettings()) == 2_000_000
    own = message_bytes(EnvSettings(allow_documents=True))
    assert own > len(json.dumps("\U0001f600" * 1000)) / 1000 * DOCUMENT_CHARS
