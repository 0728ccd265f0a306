"""Print samples of a profile's problems as Markdown: `python -m benchmarks.problems`.

docs/problem_samples.md has one of `--profile papers`, the default, and one of `--profile nano`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from itertools import count

from env.problems import fields
from env.problems.papers import plan_collection, write_collection
from env.problems.papers.asked import Asked
from env.problems.schema import Paper, Problem, Span
from env.problems.settings import SyntheticSettings
from tasks.config import resolve

SHOWN = {"easy": "score", "medium": "training", "hard": "score"}
"""Kind of question that is shown for each level."""

WHY = {
    "score": "another split, release, metric, method or variant, or an experiment not made",
    "board": "another split, release, metric or variant, or an experiment not made",
    "ablation": "another part or another change, or an experiment not made",
    "training": "another state or release of the corpus, or training that did not count",
    "aspect": "denied, not examined, or said of others",
    "weakness": "another method, the opposite, or not tested",
    "cause": "another method, or denied, or not tested",
    "updates": "another method, or another training of this one",
    "size": "another method, or another design of this one",
}
"""Reason why the near misses of a kind are not evidence."""


def in_place(paper: Paper, span: Span) -> str:
    """A gold sentence with its neighbours, or a gold row with the head of its table."""
    line_start = paper.text.rfind("\n", 0, span.start) + 1
    line_end = paper.text.find("\n", span.end)
    line = paper.text[line_start : line_end if line_end >= 0 else None]
    if line.startswith("|"):
        table = paper.text.rfind("\nTable ", 0, span.start) + 1
        caption, head = paper.text[table:].split("\n")[:2]
        return f"{caption} / {head} / ... / **{span.text}**"
    before = re.split(r"(?<=[.?!]) (?=[A-Z])", line[: span.start - line_start].rstrip())[-1]
    after = re.split(r"(?<=[.?!]) (?=[A-Z])", line[span.end - line_start :].lstrip())[0]
    return f"{before} **{span.text}** {after}".strip()


def sample(problem: Problem, asked: Asked) -> Iterator[str]:
    """One problem as Markdown."""
    papers = {paper.paper_id: paper for paper in problem.papers}
    yield f"### {problem.difficulty}: `{problem.problem_id}`, {problem.tier}, kind {asked.kind}\n"
    yield f"> {problem.question}\n"
    for paper in problem.papers:
        yield f"- {paper.paper_id}: {paper.title} ({len(paper.text.split())} words)"
    yield "\nEvidence, in its place:\n"
    for fact in problem.evidence:
        for n, span in enumerate(fact.spans):
            name = fact.fact_id if n == 0 else f"or, for {fact.fact_id}"
            yield f"- {name}, {span.paper_id}: {in_place(papers[span.paper_id], span)}"
    plan, text = asked.missed[0]
    yield f"\nNot evidence ({WHY[asked.kind]}):\n"
    yield f"- p{plan.number + 1}: {text}\n"


def print_samples(settings: SyntheticSettings) -> None:
    """Print each level's first problem of the kind in `SHOWN` with two or more gold papers.

    Raises:
        KeyError: the profile has a level without a kind.
    """
    for level in settings.levels_of("test"):
        for number in count():
            _, asked = plan_collection(settings, "test", level, number)
            fits = [len(q.papers) > 1 and q.kind == SHOWN[level] for q in asked]
            if any(fits):
                q = fits.index(True)
                problem = write_collection(settings, "test", level, number)[q]
                print("\n".join(sample(problem, asked[q])))
                break


def fields_sample(settings: SyntheticSettings) -> Iterator[str]:
    """The first test problem of the first level as Markdown, all text included."""
    level = next(iter(settings.levels))
    problem = fields.write_collection(settings, "test", level, 0)[0]
    gold = {fact.spans[0].text for fact in problem.evidence}
    yield f"### fields, {level}: `{problem.problem_id}`, {problem.tier}\n"
    yield f"> {problem.question}\n"
    for paper in problem.papers:
        yield f"- {paper.paper_id}: {paper.title}"
        for line in paper.text.split("\n")[1:]:
            yield f"  - **{line}**" if line in gold else f"  - {line}"
    candidates = [span.text for span in problem.candidates]
    yield f"\nFields of the {len(candidates)} candidates, which only the lexicon knows:"
    yield ", ".join(fields.field_of(text, settings.lexicon) for text in candidates) + "."


def main() -> None:
    """Print the samples of a profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="papers")
    settings = resolve(parser.parse_args().profile).prepare.synthetic
    if settings.world == "fields":
        print("\n".join(fields_sample(settings)))
    else:
        print_samples(settings)


if __name__ == "__main__":
    main()
