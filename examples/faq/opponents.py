"""Measure what people would use instead of a trained reader, on questions with gold passages.

`python -m examples.faq.opponents python git` prints the F1 of characters of the first k passages,
for BM25 and for all-MiniLM-L6-v2 (`make setup-search`). The last column has those of the first
twelve that stand near the best one, as in profile `faq`.

`--likelihood models/base` adds that model without any training: it orders the first twelve
passages of MiniLM by the probability of the question after each. So does the sum of its standard
scores and MiniLM's. That takes ten seconds of CPU a question: choose some with `--questions`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agent.policies import baselines
from env.embedding import embedder
from env.problems.schema import Problem
from env.ranking import near, rank
from examples.faq.collect import TARGET
from tasks.check_problems import read_problem_rows
from tasks.config import resolve

KS = (1, 2, 3, 5, 10)
FIRST = 12
"""Passages that the likelihood orders, and of which those near the best one are taken."""

Passage = tuple[str, str]
Scores = Callable[[str, list[str]], Any]


def load(name: str) -> list[Problem]:
    """Questions of a collection about all of its documents."""
    at = str(TARGET / f"{name}.jsonl"), str(TARGET / "documents")
    found = read_problem_rows(resolve("faq"), *at).found.problems
    return [problem for problem in found if problem.split == "test"]


def measure(question: Problem, passages: Sequence[Passage], chars: int) -> dict[str, float]:
    """F1 of some passages, by the name of their column."""
    some = {f"k={k}": passages[:k] for k in KS}
    some["near"] = near(question.texts, passages[:FIRST], chars)
    quoted = {n: [{"paper_id": p, "text": t} for p, t in found] for n, found in some.items()}
    return {name: baselines.f1(question, quotes) for name, quotes in quoted.items()}


def likelihood(base: Path) -> Scores:
    """Scores of passages by a model: mean log-probability of the question after each."""
    import torch

    from agent.policies.hf_policy import load_model

    model, tokenizer = load_model(base, dtype=torch.float32)

    def one(question: str, passage: str) -> float:
        before = tokenizer(f"{passage}\n\nQuestion answered above:").input_ids
        after = tokenizer(f" {question}").input_ids
        ids = torch.tensor([before + after])
        with torch.no_grad():
            logits = model(ids).logits[0, len(before) - 1 : -1]
        return float(logits.log_softmax(-1).gather(1, ids[0, len(before) :, None]).mean())

    return lambda question, texts: np.array([one(question, text) for text in texts])


def orders(papers: Mapping[str, str], asked: str, judge: Scores | None) -> dict[str, list[Passage]]:
    """Passages in the order of each opponent."""
    meaning = embedder()
    passages = rank(papers, asked, FIRST, order=meaning.order)
    ordered = {"BM25": rank(papers, asked, FIRST), "MiniLM": passages}
    if judge is not None:
        texts = [text for _, text in passages]
        close, likely = meaning.scores(asked, texts), judge(asked, texts)
        for name, scores in {"likelihood": likely, "both": _z(close) + _z(likely)}.items():
            ordered[name] = [passages[place] for place in np.argsort(-scores, kind="stable")]
    return ordered


def _z(scores: Any) -> Any:
    return (scores - scores.mean()) / (scores.std() or 1.0)


def table(questions: Sequence[Problem], judge: Scores | None) -> str:
    """A line for each opponent."""
    chars = resolve("faq").warmstart.sft.near_chars or 0
    rows: dict[str, list[dict[str, float]]] = {}
    for one in questions:
        for name, passages in orders(one.texts, one.question, judge).items():
            rows.setdefault(name, []).append(measure(one, passages, chars))
    columns = list(rows["BM25"][0])
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, measured in rows.items():
        means = [fmean(row[column] for row in measured) for column in columns]
        lines.append(f"| {name} | {' | '.join(f'{value:.3f}' for value in means)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table for each collection."""
    parser = argparse.ArgumentParser(description="Measure search alone on questions with gold.")
    parser.add_argument("collections", nargs="+", help="names of NAME.jsonl in the folder")
    parser.add_argument("--likelihood", type=Path, metavar="MODEL", help="folder of a model")
    parser.add_argument("--questions", type=int, help="evenly spaced ones; default: all")
    args = parser.parse_args()
    judge = args.likelihood and likelihood(args.likelihood)
    for name in args.collections:
        asked = load(name)
        many = min(args.questions or len(asked), len(asked))
        some = [asked[k * len(asked) // many] for k in range(many)]
        print(f"\n{name}: {len(some)} questions about {len(asked[0].papers)} documents\n")
        print(table(some, judge))


if __name__ == "__main__":
    main()
