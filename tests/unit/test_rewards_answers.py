"""Answers in a wrong form earn nothing, however close they are to the evidence.

Each answer is one that the sandbox passes on unchanged. `tests/attacks/test_rewards_exploits.py`
plays the answers whose fate the sandbox decides.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.episodes import episode

from env.problems.fields import SyntheticSettings, generate
from env.problems.schema import Problem
from rewards.combine import COMPONENTS, Score, score
from tasks.config import resolve
from tasks.config.params import Params

SETTINGS = {name: resolve(name) for name in ("nano", "trials")}
LOOKALIKES = str.maketrans("aeo", "\u0430\u0435\u043e")


FEW = SyntheticSettings(collections={"test": 1}, questions_per_collection=1)
PROBLEMS = generate(FEW)
"""A problem of each level."""


def earned(problem: Problem, answer: Any, params: Params) -> Score:
    """The score that an expert would earn with this answer."""
    gold = problem.gold_papers
    facts = episode(
        papers=problem.texts,
        evidence=problem.places,
        answer=answer,
        papers_read=frozenset(gold),
        turns=1 + len(gold),
        sub_calls=len(gold),
    )
    return score(facts, params.rewards)


def place(paper_id: str, start: Any, end: Any) -> dict[str, Any]:
    return {"paper_id": paper_id, "start": start, "end": end}


def wrong_answers(problem: Problem) -> dict[str, Any]:
    """Wrong forms of gold, and texts and places that hold none, by name."""
    papers = problem.texts
    spans = [fact.spans[0] for fact in problem.evidence]
    gold = [span.text for span in spans]

    def elsewhere(quote: str) -> str:
        return next((name for name, text in papers.items() if quote not in text), "p99")

    def from_the_end(name: str, index: int) -> int:
        return index - len(papers[name])

    return {
        "gold in other case": [quote.swapcase() for quote in gold],
        "gold with lookalikes": [quote.translate(LOOKALIKES) for quote in gold],
        "gold with invisible characters": ["\u200b".join(quote) for quote in gold],
        "gold in a sentence of its own": [f"It says: {quote}" for quote in gold],
        "gold glued to another paper": " ".join([*gold, *(t[:40] for t in papers.values()), "so"]),
        "gold quoted from another paper": [
            {"paper_id": elsewhere(quote), "text": quote} for quote in gold
        ],
        "gold quoted without its paper": [{"text": quote} for quote in gold],
        "gold under keys of its own": {
            "answer": gold,
            "evidence": [span.model_dump() for span in spans],
        },
        "gold with float indices": [place(s.paper_id, float(s.start), float(s.end)) for s in spans],
        "gold with indices from the end": [
            place(s.paper_id, *(from_the_end(s.paper_id, i) for i in (s.start, s.end)))
            for s in spans
        ],
        "gold with its ends swapped": [place(s.paper_id, s.end, s.start) for s in spans],
        "nothing": None,
        "indices as truth values": [place(name, False, 40) for name in papers],
        "places as triples": [[name, 0, 40] for name in papers],
        "a paper that is not there": [place("p99", 0, 40)],
        "names of papers": list(papers),
        "paraphrase": [f"It is said that {problem.question}"],
    }


@pytest.mark.parametrize("profile", SETTINGS)
@pytest.mark.parametrize("name", wrong_answers(PROBLEMS[0]))
def test_an_answer_in_a_wrong_form_earns_nothing(profile: str, name: str) -> None:
    for problem in PROBLEMS:
        one = earned(problem, wrong_answers(problem)[name], SETTINGS[profile])
        assert one.components == dict.fromkeys(COMPONENTS, 0.0)
        assert one.total == 0.0


@pytest.mark.parametrize("profile", SETTINGS)
@pytest.mark.parametrize("keys", [["paper_id", "start", "end"], ["paper_id", "text"], []])
def test_the_same_gold_in_a_right_form_earns_all(profile: str, keys: list[str]) -> None:
    for problem in PROBLEMS:
        spans = [fact.spans[0].model_dump() for fact in problem.evidence]
        answer = [{key: s[key] for key in keys} if keys else s["text"] for s in spans]
        assert earned(problem, answer, SETTINGS[profile]).total == pytest.approx(1.0)
