"""The comparison of the small model's arms: figures of its tables, and quotes of a reply."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import small_model
from env.problems.schema import Fact, Paper, Problem, Span
from tasks.config import resolve

TEXTS = {"p1": "Kalvot reads maps.\n\nIt is slow.", "p2": "It is slow."}


def row(arm: str, seed: int, f1: list[float]) -> dict[str, Any]:
    scores = {"f1": f1, "reward": f1, "tokens": [100.0] * len(f1)}
    return {
        "arm": arm, "seed": seed, "greedy": scores, "sampled": scores,
        "collections": [f"c{number // 2}" for number in range(len(f1))],
    }  # fmt: skip


def test_seeds_are_paired_and_collections_drawn() -> None:
    rows = [
        row("demonstrations", 0, [0.1, 0.3, 0.2, 0.2]), row("GRPO", 0, [0.3, 0.5, 0.2, 0.2]),
        row("demonstrations", 1, [0.0, 0.0, 0.0, 0.0]), row("GRPO", 1, [0.1, 0.1, 0.1, 0.1]),
        row("GRPO", 2, [1.0, 1.0, 1.0, 1.0]),
    ]  # fmt: skip
    # Each collection's mean difference is 0.15 and 0.05, over the seeds that both arms have.
    (line,) = small_model.differences(rows).split("\n")[2:]
    assert line.startswith("| demonstrations | 0.100 [0.050, 0.150] (0.100, 0.100) |")
    table = small_model.table(rows).split("\n")
    assert table[2].startswith("| demonstrations | 2 | 0.100 [0.100, 0.100] (0.200, 0.000) |")
    assert table[2].endswith("| 1,000 |")


def test_a_line_without_a_model_has_no_tokens() -> None:
    (line,) = small_model.table(
        [{"arm": "BM25", "seed": 0, "greedy": {"f1": [0.0]}, "collections": ["c"]}]
    ).split("\n")[2:]
    assert line == "| BM25 | 1 | 0.000 [0.000, 0.000] | - | - | - |"
    silent = row("bare", 0, [0.0, 0.0])
    assert small_model.table([silent]).endswith("| none is right |")


@pytest.mark.parametrize(
    "reply", ["It is slow.", '"It is slow."\nnot there', "- It is slow.\nIt is slow."]
)
def test_quotes_are_lines_that_a_document_has(reply: str) -> None:
    papers = [Paper(paper_id=i, title=i, abstract="", text=t) for i, t in TEXTS.items()]
    span = Span(paper_id="p2", start=0, end=11, text="It is slow.")
    problem = Problem(
        problem_id="one", collection_id="c", split="test", difficulty="easy", tier="focused",
        question="Is it slow?", papers=tuple(papers), evidence=(Fact(fact_id="f", spans=(span,)),),
    )  # fmt: skip
    assert small_model._quotes(reply, problem) == [
        {"paper_id": paper_id, "text": "It is slow."} for paper_id in TEXTS
    ]


@pytest.mark.parametrize("arm", small_model.ARMS.values())
def test_settings_of_arms_are_valid(arm: small_model.Arm) -> None:
    resolve(small_model.PROFILE, [*arm.base, *(arm.grpo or ())])
