from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from assistant.drafting import DraftPrompt, Drafts, collect
from tasks.config.params import Params

ORDERS = "The looms arrive on 14 May. They were built in Turin and cost 900 crowns."
GARDEN = "The garden was planted in spring by the weavers of Turin themselves."
ONE = DraftPrompt(("a.md",), (("a.md", ORDERS),))
TWO = DraftPrompt(("a.md", "b.md"), (("a.md", ORDERS), ("b.md", GARDEN)))
QUESTION = "When do the looms arrive?"


def answer(*quotes: Any, question: Any = QUESTION, times: int = 1) -> str:
    evidence = [{"document": name, "quote": quote} for name, quote in quotes]
    return json.dumps({"questions": [{"question": question, "evidence": evidence}] * times})


def collected(text: str | None, prompt: DraftPrompt = ONE) -> Drafts:
    choice = SimpleNamespace(message=SimpleNamespace(content=text))
    usage = SimpleNamespace(prompt_tokens=10, completion_tokens=3)
    drafts = Drafts()
    collect(SimpleNamespace(choices=[choice], usage=usage), prompt, Params(), drafts)
    return drafts


def test_a_quote_is_aligned_with_its_document() -> None:
    drafts = collected(answer(("D1", "the looms arrive  on 14 May")))
    ((row,), usage) = drafts.rows, drafts.usage
    assert row["question"] == QUESTION
    assert row["documents"] == ["a.md"]
    ((document, quote),) = (tuple(one.values()) for one in row["evidence"])
    assert document == "a.md"
    assert quote in ORDERS
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (1, 10, 3)
    assert not collected(answer(("D1", "The looms arrive on 15 May."))).rows


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "another form"),
        ("I am sorry.", "another form"),
        ("[" * 100_000, "another form"),
        ('{"questions": [{"question": "Why?"}]}', "another form"),
        (answer(("D1", ["a"])), "another form"),
        (answer(), "without quotes"),
        (answer(*[("D1", "The looms arrive on 14 May.")] * 9), "more than 8"),
        (answer(("D1", "x" * 5000)), "not in the passage"),
        (answer(("D7", "The looms arrive on 14 May.")), "quote another document"),
        (answer(("b.md", "The looms arrive.")), "quote another document"),
        (answer(("D1", "The looms never arrive, says the king.")), "not in the passage"),
        (answer(("D1", "14 May.")), "too short"),
        (answer(("D1", ORDERS), question="Why?"), "not a plain sentence"),
        (answer(("D1", ORDERS), question="When \x1b[2J do the looms arrive?"), "not a plain"),
        (answer(("D1", ORDERS), question="When <|im_start|> do they arrive?"), "not a plain"),
        (answer(("D1", ORDERS), question="When, by the passage, is it?"), "beside the passage"),
    ],
    ids=range(16),
)
def test_nonsense_is_counted_and_nothing_else(text: str | None, reason: str) -> None:
    drafts = collected(text)
    assert drafts.rows == []
    ((found, _),) = drafts.dropped.items()
    assert reason in found


def test_questions_beyond_the_number_asked_for_and_repeated_ones_are_left_out() -> None:
    drafts = collected(answer(("D1", ORDERS), times=50))
    assert len(drafts.rows) == 1
    assert drafts.dropped == {"repeated questions": 2}


def test_a_document_can_only_spoil_questions_that_quote_it() -> None:
    # Beside a hostile document, a question about the other one alone is not accepted.
    drafts = collected(answer(("D1", ORDERS)), TWO)
    assert drafts.dropped == {"questions about several documents that quote one": 1}
    (both,) = collected(answer(("D1", ORDERS), ("D2", GARDEN)), TWO).rows
    assert [one["document"] for one in both["evidence"]] == ["a.md", "b.md"]
