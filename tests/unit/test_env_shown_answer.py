"""The answer that a client reads: whole, unless it is large as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from env.models import RLMObservation
from env.server.environment import _ANSWER_BYTES, _shown_answer


@pytest.mark.parametrize(
    "answer",
    [
        None,
        0.5,
        "",
        "\udc80",
        ["Kalvot scores 12."] * 2000,
        [{"paper_id": "p", "start": 1, "end": 20}] * 2000,
    ],
)
def test_an_answer_that_can_earn_something_is_shown_whole(answer: Any) -> None:
    assert _shown_answer(answer) is answer


@pytest.mark.parametrize(
    "answer",
    [
        "\x01" * 1_000_000,
        "x" * 200_000,
        "\U0001f600" * 250_000,
        [[]] * 62_498,
        ['"\\' * 100] * 9_000,
        [{"\x7f": ""}] * 20_001,
    ],
    ids=["control", "plain", "wide", "lists", "quotes", "dicts"],
)
def test_a_large_answer_is_cut_to_bytes_of_the_wire(answer: Any) -> None:
    assert len(RLMObservation(answer=answer).model_dump_json()) > _ANSWER_BYTES
    shown = _shown_answer(answer)
    assert "characters cut]" in shown
    assert len(RLMObservation(answer=shown).model_dump_json().encode()) <= _ANSWER_BYTES
