"""Gold against text: every place where a gold text stands is an alternative of its fact.

Neighbours: a source (`synthetic.py`) makes problems, `tasks/prepare.py` completes or rejects
them with what is here.
"""

from __future__ import annotations

from env.problems.schema import Fact, Paper, Problem, Span


def _occurrences(papers: tuple[Paper, ...], wanted: str) -> list[Span]:
    found = []
    for paper in papers:
        start = paper.text.find(wanted)
        while start >= 0:
            end = start + len(wanted)
            found.append(Span(paper_id=paper.paper_id, start=start, end=end, text=wanted))
            start = paper.text.find(wanted, start + 1)
    return found


def add_alternatives(problem: Problem) -> Problem:
    """The problem with each exact further occurrence of a gold text as an alternative.

    An answer in bare strings points at all of them. Facts that end up with the same
    alternatives are one fact.
    """
    facts: dict[frozenset[tuple[str, int, int]], Fact] = {}
    for fact in problem.evidence:
        spans = {(span.paper_id, span.start, span.end): span for span in fact.spans}
        for wanted in {span.text: None for span in fact.spans}:
            for span in _occurrences(problem.papers, wanted):
                spans.setdefault((span.paper_id, span.start, span.end), span)
        completed = Fact(fact_id=fact.fact_id, spans=tuple(spans.values()))
        facts.setdefault(frozenset(spans), completed)
    evidence = tuple(facts.values())
    if evidence == problem.evidence:
        return problem
    return problem.model_copy(update={"evidence": evidence})


def fault(problem: Problem, min_span_chars: int) -> str | None:
    """Why nobody could earn the reward of this problem; None when all is well.

    Args:
        problem: any problem.
        min_span_chars: shorter spans are ignored in answers, so they cannot be gold.
    """
    texts = {paper.paper_id: paper.text for paper in problem.papers}
    if len(texts) < len(problem.papers):
        return "two papers have the same paper_id"
    for fact in problem.evidence:
        for span in fact.spans:
            where = f"{fact.fact_id}: {span.paper_id}[{span.start}:{span.end}]"
            if texts.get(span.paper_id, "")[span.start : span.end] != span.text:
                return f"{where} is not the gold text"
            if len(span.text) < min_span_chars:
                return f"{where} is shorter than {min_span_chars} characters"
    return None
