"""The example for a public harness, without the harness: its commands, its questions, its scores.

`test_flows_serve.py` runs it where inspect-ai is installed.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
from helpers.documents import ROOT

from agent.rollouts.own_documents import Answer, Quote
from assistant.openai_api import answer_text
from flows.serve import PORT

PAGE = ROOT / "examples/inspect_long_context.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names of the example; its samples are dictionaries."""
    for name in ("inspect_ai", "inspect_ai.model", "inspect_ai.scorer"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    monkeypatch.setitem(sys.modules, "inspect_ai.dataset", MagicMock(Sample=dict))
    return runpy.run_path(str(PAGE))


def test_the_example_fits_on_its_page_and_asks_the_server_that_it_starts() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    (serve,) = re.findall(r"^    rlm (serve .*)$", ast.get_docstring(ast.parse(text)) or "", re.M)
    words = shlex.split(serve)
    name, _, folder = words[words.index("--docs") + 1].partition("=")
    assert f"openai-api/rlm/{name}\n" in text
    assert f"RLM_BASE_URL=http://127.0.0.1:{PORT}/v1 " in text
    collect = runpy.run_path(str(ROOT / "examples/documents/collect.py"))
    assert folder == str(collect["TARGET"])


def test_the_quotes_of_an_answer_are_scored_without_their_places(example: dict[str, Any]) -> None:
    quotes = ["The looms\n\narrive on 14 May.", "> quoted, characters 1-2"]
    evidence = [Quote("orders, old.md", 9, 9 + len(text), text) for text in quotes]
    assert example["quoted"](answer_text(Answer(evidence))) == "\n".join(quotes)
    assert example["quoted"](answer_text(Answer(stop_reason="final"))) == ""


def test_each_alternative_of_a_gold_quote_makes_a_target(example: dict[str, Any]) -> None:
    lines = example["QUESTIONS"].read_text(encoding="utf-8").splitlines()
    samples = [example["sample"](json.loads(line)) for line in lines]
    assert len(samples) == 14
    assert {len(one["target"]) for one in samples} == {1, 2}
    (prefect,) = (one for one in samples if one["input"].startswith("From when on does a worker"))
    assert ["backend_id" in target for target in prefect["target"]] == [False, True]
