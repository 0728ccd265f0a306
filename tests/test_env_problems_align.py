"""Gold against text: further occurrences become alternatives, faults are named."""

from __future__ import annotations

from env.problems.align import add_alternatives, fault
from env.problems.schema import Fact, Paper, Problem, Span

GOLD = "Kalvot scores 42 on Mirbex."


def paper(paper_id: str, text: str) -> Paper:
    return Paper(paper_id=paper_id, title="t", abstract="a", text=text)


def span(paper_id: str, start: int, text: str = GOLD) -> Span:
    return Span(paper_id=paper_id, start=start, end=start + len(text), text=text)


def problem(papers: list[Paper], *facts: list[Span]) -> Problem:
    return Problem(
        problem_id="q",
        group_id="g",
        split="train",
        difficulty="easy",
        tier="singleton",
        question="?",
        papers=tuple(papers),
        evidence=tuple(Fact(fact_id=f"f{i}", spans=tuple(s)) for i, s in enumerate(facts)),
    )


def test_every_further_occurrence_is_an_alternative() -> None:
    one = problem([paper("p1", f"{GOLD}\n{GOLD}"), paper("p2", f"x {GOLD}")], [span("p1", 0)])
    spans = add_alternatives(one).evidence[0].spans
    assert [(s.paper_id, s.start) for s in spans] == [("p1", 0), ("p1", len(GOLD) + 1), ("p2", 2)]
    assert fault(add_alternatives(one), 12) is None


def test_facts_with_the_same_alternatives_become_one() -> None:
    texts = [paper("p1", GOLD), paper("p2", GOLD)]
    both = problem(texts, [span("p1", 0)], [span("p2", 0)])
    assert len(add_alternatives(both).evidence) == 1


def test_a_complete_problem_stays_as_it_is() -> None:
    whole = problem([paper("p1", GOLD)], [span("p1", 0)])
    assert add_alternatives(whole) is whole


def test_faults_are_named() -> None:
    text = [paper("p1", f"{GOLD}\nmore")]
    assert fault(problem(text, [span("p1", 0)]), 12) is None
    assert "not the gold text" in str(fault(problem(text, [span("p1", 1)]), 12))
    assert "not the gold text" in str(fault(problem(text, [span("p9", 0)]), 12))
    assert "shorter than 30" in str(fault(problem(text, [span("p1", 0)]), 30))
    assert "same paper_id" in str(fault(problem(text * 2, [span("p1", 0)]), 12))
