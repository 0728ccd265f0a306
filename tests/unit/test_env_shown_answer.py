"""The answer that a client reads: whole, unless it is large as JSON."""

from typing import Any

import pytest

from env.models import RLMObservation
from env.server.environment import _ANSWER_BYTES, _shown_answer


def test_an_answer_that_can_earn_something_is_shown_whole() -> None:
    places = [{"paper_id": "p", "start": 1, "end": 20}] * 2000
    for answer in (None, 0.5, "", "\udc80", ["Kalvot scores 12."] * 2000, places):
        assert _shown_answer(answer) is answer


LARGE: dict[str, Any] = {
    "control": "\x01" * 1_000_000,
    "plain": "x" * 200_000,
    "wide": "\U0001f600" * 250_000,
    "lists": [[]] * 62_498,
    "quotes": ['"\\' * 100] * 9_000,
    "dicts": [{"\x7f": ""}] * 20_001,
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_answer_is_cut_to_bytes_of_the_wire(kind: str) -> None:
    answer = LARGE[kind]
    assert len(RLMObservation(answer=answer).model_dump_json()) > _ANSWER_BYTES
    shown = _shown_answer(answer)
    assert "characters cut]" in shown
    assert len(RLMObservation(answer=shown).model_dump_json().encode()) <= _ANSWER_BYTES
