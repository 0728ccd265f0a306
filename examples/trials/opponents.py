"""Measure what needs no training, on the problems of clinical trials: F1, recall and seconds.

`python -m examples.trials.opponents` reads data/trials, which `collect.py` fills, and prints a
table: BM25 with the whole question, BM25 with the best query of a sweep over training problems,
all-MiniLM-L6-v2 (`make setup-search`), the perfect choice among the first passages of the best
query, and one doctor against the others. All are scored by characters, as the environment does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from agent.demonstrations.moves import parts_of
from agent.evaluation.statistics import Bootstrap
from env.embedding import installed, order_of
from env.problems.schema import Problem
from env.ranking import rank
from examples.trials.collect import LEVELS, TARGET
from rewards.spans import Agreement, locate, merge, span_f1
from tasks.check_problems import read_problem_rows
from tasks.config import resolve
from tasks.config.params import Params

PROFILE = "trials"
TUNED = 100
"""Training problems of the sweep."""
ORDERED = 128
"""Passages that MiniLM orders: the first of BM25."""
QUOTED = (1, 2, 3, 5)
CHOSEN = (8, 16, 32)
"""Passages among which the perfect choice is made."""
WORDS = (
    "",
    "significant",
    "significantly",
    "significant difference",
    "significantly compared",
    "significant significantly difference p",
    "significantly compared p groups",
)
BOOTSTRAP = Bootstrap(resamples=10_000, seed=0)

Passage = tuple[str, str]


@dataclass(frozen=True)
class Query:
    """A way to search."""

    parts: tuple[str, ...]
    """Parts of the question; () for the question itself."""
    words: str
    paper_first: bool
    quoted: int

    def __str__(self) -> str:
        asked = " and ".join(self.parts) or "the question"
        more = f", “{self.words}”" if self.words else ""
        where = ", in the paper that fits best" if self.paper_first else ""
        return f"{asked}{more}{where}: first {self.quoted}"


def search(
    problem: Problem, query: Query, most: int, params: Params, by: str = "bm25"
) -> list[Passage]:
    """The first passages of a query, ranked as the environment does."""
    sizes = {"chars": params.env.passage_chars, "least": params.rewards.min_span_chars}
    texts = problem.texts
    if query.paper_first:
        texts = {p: texts[p] for p, _ in rank(texts, problem.question, 1, **sizes)}
    parts = parts_of(problem.question, params.warmstart.sft.moves.question) or {}
    asked = " ".join([*(parts[name] for name in query.parts), query.words]).strip()
    sizes["ordered"] = ORDERED
    return rank(texts, asked or problem.question, most, **sizes, order=order_of(by))


def agreement(problem: Problem, passages: Sequence[Passage], params: Params) -> Agreement:
    """Agreement of an answer that quotes these passages with the doctors."""
    answer = [{"paper_id": paper_id, "text": text} for paper_id, text in passages]
    return span_f1(locate(answer, problem.texts, params.rewards).retrieved, problem.places)


def sweep(problems: Sequence[Problem], params: Params) -> Query:
    """The query with the best F1 on training problems."""
    sums = defaultdict[Query, float](float)
    parts = [(), *map(tuple, params.warmstart.sft.moves.parts)]
    for problem in problems:  # outside, because `rank` keeps what it knows of a problem's papers
        for some, words, first in product(parts, WORDS, (False, True)):
            query = Query(some, words, first, max(QUOTED))
            found = search(problem, query, query.quoted, params)
            for quoted in QUOTED:
                sums[replace(query, quoted=quoted)] += agreement(problem, found[:quoted], params).f1
    return max(sums, key=lambda query: sums[query])


def perfect(problem: Problem, passages: Sequence[Passage], params: Params) -> list[Passage]:
    """Passages added as long as F1 rises, the best one first."""
    chosen: list[Passage] = []
    score, left = 0.0, list(passages)
    while left:
        value, _, one = max(
            (agreement(problem, [*chosen, one], params).f1, -place, one)
            for place, one in enumerate(left)
        )
        if value <= score:
            break
        score = value
        chosen.append(one)
        left.remove(one)
    return chosen


def doctors(marked: Sequence[Sequence[Sequence[int]]]) -> Iterator[Agreement]:
    """Each doctor of a prompt against the others together; nothing for a single one."""
    for number, own in enumerate(marked):
        others = [(a, b) for k, spans in enumerate(marked) if k != number for a, b in spans]
        if others:
            yield span_f1({"": [(a, b) for a, b in own]}, [[("", a, b)] for a, b in merge(others)])


def row(
    name: str, scores: Sequence[Agreement], articles: Sequence[str], seconds: float | None = None
) -> str:
    """A line of the table; the interval is over articles."""
    f1 = BOOTSTRAP.mean([score.f1 for score in scores], articles)
    recall, took = fmean(one.recall for one in scores), f"{seconds:.2f}" if seconds else ""
    return (
        f"| {name} | {len(scores)} | {f1.mean:.3f} ({f1.low:.3f} to {f1.high:.3f}) | "
        f"{recall:.2f} | {took} |"
    )


def table(
    problems: Sequence[Problem],
    best: Query,
    marked: Mapping[str, Any],
    params: Params,
    minilm: bool,
) -> Iterator[str]:
    """Lines of the table.

    Args:
        problems: those that are answered.
        best: query of the sweep.
        marked: spans of each doctor by prompt.
        params: of the profile.
        minilm: whether its model is installed.
    """
    articles = [one.collection_id for one in problems]
    question, outcome = Query((), "", False, 1), Query(("outcome",), "", False, best.quoted)
    searches = [("BM25", question), ("BM25", best)]
    searches += [("MiniLM", question), ("MiniLM", outcome)] if minilm else []
    yield "| | n | F1 (95 % interval) | recall | seconds |"
    yield "|---|---|---|---|---|"
    for by, query in searches:
        began = time.perf_counter()
        found = [search(one, query, query.quoted, params, by.lower()) for one in problems]
        seconds = (time.perf_counter() - began) / len(problems)
        scores = [agreement(one, some, params) for one, some in zip(problems, found, strict=True)]
        yield row(f"{by}, {query}", scores, articles, seconds)
    for most in CHOSEN:
        chosen = [perfect(one, search(one, best, most, params), params) for one in problems]
        scores = [agreement(one, some, params) for one, some in zip(problems, chosen, strict=True)]
        yield row(f"perfect choice among the first {most}", scores, articles)
    each = [
        (score, one.collection_id)
        for one in problems
        for score in doctors(marked[one.problem_id.partition("-")[0]])
    ]
    yield row("one doctor against the others", [s for s, _ in each], [a for _, a in each])


def main() -> int:
    """Print the table of a split."""
    parser = argparse.ArgumentParser(description="Measure search alone on clinical trials.")
    parser.add_argument("--data", type=Path, default=TARGET, help=f"default: {TARGET}")
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--level", default="hard", choices=list(LEVELS))
    args = parser.parse_args()
    path, documents = args.data / "trials.jsonl", args.data / "documents"
    if not path.is_file():
        print(f"opponents: {args.data} has no trials.jsonl. Run examples.trials.collect first.")
        return 1
    params = resolve(PROFILE)
    problems = read_problem_rows(params, str(path), str(documents)).found.problems
    of_level = [one for one in problems if one.difficulty == args.level]
    train = [one for one in of_level if one.split == "train"]
    best = sweep(Random(0).sample(train, min(TUNED, len(train))), params)
    minilm = installed()
    if not minilm:
        print("MiniLM is left out: run `make setup-search` to measure it.", file=sys.stderr)
    marked = json.loads((args.data / "doctors.json").read_text(encoding="utf-8"))
    asked = [one for one in of_level if one.split == args.split]
    print("\n".join(table(asked, best, marked, params, minilm)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
