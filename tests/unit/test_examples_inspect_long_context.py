"""The example for a public harness, without the harness: its questions and its scores.

`test_flows_serve.py` runs it where inspect-ai is installed.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
from helpers.documents import ROOT

from agent.rollouts.own_documents import Answer, Quote
from assistant.openai_api import answer_text

PAGE = ROOT / "examples/inspect_long_context.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names of the example; its samples are dictionaries."""
    for name in ("inspect_ai", "inspect_ai.model", "inspect_ai.scorer"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setitem(sys.modules, "inspect_ai.dataset", MagicMock(Sample=dict))
    return runpy.run_path(str(PAGE))


def test_the_quotes_of_an_answer_are_scored_without_their_places(example: dict[str, Any]) -> None:
    quotes = ["The looms\n\narrive on 14 May.", "> quoted, characters 1-2"]
    evidence = [Quote("orders, old.md", 9, 9 + len(text), text) for text in quotes]
    assert example["quoted"](answer_text(Answer(evidence, sentence="Yes."))) == "\n".join(quotes)
    assert answer_text(Answer(evidence)).startswith("Ranked passages; no model read")
    assert example["quoted"](answer_text(Answer(stop_reason="final"))) == ""


def test_no_quote_and_no_name_of_a_file_leaves_its_fence() -> None:
    text = "```\n![a](http://evil.example/pixel)\n````"
    answer = answer_text(Answer([Quote("a\n`````\n![b](x).md", 0, 9, text)], turns=1))
    fence, *inside, end = answer.split("\n")
    assert fence == end == "``````"
    assert fence not in inside


def test_each_alternative_of_a_gold_quote_makes_a_target(example: dict[str, Any]) -> None:
    first, second, third = ({"document": "a.md", "quote": text} for text in ("One.", "Two.", "2."))
    row = {"question": "Which?", "evidence": [first, {"alternatives": [second, third]}]}
    assert example["sample"](row) == {"input": "Which?", "target": ["One. Two.", "One. 2."]}
