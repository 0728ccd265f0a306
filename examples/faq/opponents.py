"""Measure what people would use instead of a trained reader, on questions with gold passages.

`python -m examples.faq.opponents python git` prints the F1 of characters of the first k passages,
and their recall at 10 and 20, for BM25 and for all-MiniLM-L6-v2 (`make setup-search`). The last
column chooses k as you'd have to: for each page, on the questions of all other pages.

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

from env.embedding import embedder
from env.problems.schema import Problem
from env.ranking import rank
from examples.faq.collect import TARGET
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1
from tasks.check_problems import read_problem_rows
from tasks.config import resolve

KS = (1, 2, 3, 5, 10, 20)
FIRST = 12
"""Passages that the likelihood orders."""

Passage = tuple[str, str]
Scores = Callable[[str, list[str]], Any]


def load(name: str) -> list[Problem]:
    """Questions of a collection about all of its documents."""
    at = str(TARGET / f"{name}.jsonl"), str(TARGET / "documents")
    return list(read_problem_rows(resolve("documents"), *at).found.problems)


def measure(
    papers: Mapping[str, str], question: Problem, passages: Sequence[Passage]
) -> dict[str, float]:
    """F1 and recall of the first passages, by the name of their column."""
    measured = {}
    for k in KS:
        answer = [{"paper_id": paper, "text": text} for paper, text in passages[:k]]
        retrieved = locate(answer, papers, RewardSettings()).retrieved
        agreement = span_f1(retrieved, question.places)
        measured[f"k={k}"] = agreement.f1
        if k >= 10:
            measured[f"recall {k}"] = agreement.recall
    return measured


def on_other_pages(pages: Sequence[str], rows: Sequence[Mapping[str, float]]) -> float | None:
    """Mean F1 with the k of each page that is best on all others; None with a single page."""
    f1 = []
    for page in dict.fromkeys(pages):
        others = [row for other, row in zip(pages, rows, strict=True) if other != page]
        if not others:
            return None
        best = max((f"k={k}" for k in KS), key=lambda name: fmean(row[name] for row in others))
        f1 += [row[best] for own, row in zip(pages, rows, strict=True) if own == page]
    return fmean(f1)


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
    passages = rank(papers, asked, KS[-1], order=meaning.order)
    ordered = {"BM25": rank(papers, asked, KS[-1]), "MiniLM": passages}
    if judge is not None:
        first = passages[:FIRST]
        texts = [text for _, text in first]
        close, likely = meaning.scores(asked, texts), judge(asked, texts)
        for name, scores in {"likelihood": likely, "both": _z(close) + _z(likely)}.items():
            ordered[name] = [first[place] for place in np.argsort(-scores, kind="stable")]
    return ordered


def _z(scores: Any) -> Any:
    return (scores - scores.mean()) / (scores.std() or 1.0)


def table(questions: Sequence[Problem], judge: Scores | None) -> str:
    """A line for each opponent."""
    rows: dict[str, list[dict[str, float]]] = {}
    for one in questions:
        for name, passages in orders(one.texts, one.question, judge).items():
            rows.setdefault(name, []).append(measure(one.texts, one, passages))
    columns = list(rows["BM25"][0])
    lines = [f"| | {' | '.join(columns)} | k of other pages |", "|---" * (len(columns) + 2) + "|"]
    for name, measured in rows.items():
        means = [fmean(row[column] for row in measured) for column in columns]
        chosen = on_other_pages([min(one.gold_papers) for one in questions], measured)
        shown = [f"{value:.3f}" for value in means] + ["-" if chosen is None else f"{chosen:.3f}"]
        lines.append(f"| {name} | {' | '.join(shown)} |")
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
