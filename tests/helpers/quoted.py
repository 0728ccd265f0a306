"""A problem whose facts are quotes from its texts."""

from env.problems.schema import Fact, Paper, Problem, Span


def quoted(question: str, texts: dict[str, str], *gold: tuple[str, str]) -> Problem:
    facts = []
    for number, (paper_id, text) in enumerate(gold):
        start = texts[paper_id].index(text)
        span = Span(paper_id=paper_id, start=start, end=start + len(text), text=text)
        facts.append(Fact(fact_id=f"f{number}", spans=(span,)))
    papers = [Paper(paper_id=i, title=i, abstract="", text=t) for i, t in texts.items()]
    return Problem(
        problem_id="one", collection_id="c", split="train", difficulty="easy", tier="focused",
        question=question, papers=tuple(papers), evidence=tuple(facts),
    )  # fmt: skip
