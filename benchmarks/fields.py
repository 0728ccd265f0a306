"""Measure what answers the world `fields` without training: `python -m benchmarks.fields`.

Each line of `agent/policies/baselines.py` answers held-out problems over 2 to 48 papers, with and
without printed fields. A cell is the mean plain F1 with its 95 % interval, in a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agent.evaluation.statistics import Bootstrap
from agent.policies import baselines
from env.problems.schema import Problem
from env.problems.settings import LevelSettings, SyntheticSettings, fields_level
from env.problems.synthetic import generate

PAPERS = (2, 4, 8, 16, 24, 32, 48)
TRAINED = (4, 8, 16)
"""Numbers of papers of training problems."""


def levels(sizes: Sequence[int]) -> dict[str, LevelSettings]:
    """A level `papers_N` for each number of papers."""
    return {f"papers_{size}": fields_level(size) for size in sizes}


def problems(
    split: str, sizes: Sequence[int], collections: int, questions: int, labels: bool, seed: int
) -> list[Problem]:
    """Problems of one split, with the levels of `levels`."""
    settings = SyntheticSettings.model_validate(
        {
            "world": "fields",
            "collections": {split: collections},
            "questions_per_collection": questions,
            "levels": levels(sizes),
            "labels": labels,
            "seed": seed,
        }
    )
    return generate(settings)


def lines(training: Sequence[Problem], size: int) -> dict[str, baselines.Line]:
    """Every line by its name in the table.

    Args:
        training: problems whose gold the fitted lines know.
        size: names of the lexicon.
    """
    return {
        "keyword search, eight sentences": baselines.keyword_search,
        "every sentence of the method": baselines.every_sentence,
        "search for method and field": baselines.method_and_field,
        "majority field": baselines.majority_field(training),
        "gradient boosting": baselines.boosted(training),
        "lexicon in code": baselines.lexicon_in_code(size),
        "oracle": baselines.oracle,
    }


def print_table(wanted: int, fitted: int, labels: bool, seed: int) -> None:
    """Print the table of `wanted` problems a size; `fitted` training problems are known."""
    training = problems("train", TRAINED, -(-fitted // 9), 3, labels, seed)[:fitted]
    tested = problems("test", PAPERS, wanted, 1, labels, seed)
    print(f"\nFields {'' if labels else 'not '}printed:\n")
    print(f"| papers | {' | '.join(map(str, PAPERS))} |\n|{'---|' * (1 + len(PAPERS))}")
    bootstrap = Bootstrap(resamples=10_000, seed=seed)
    for name, line in lines(training, SyntheticSettings().lexicon).items():
        cells = []
        for size in PAPERS:
            part = [p for p in tested if p.difficulty == f"papers_{size}"]
            scores = [baselines.f1(problem, line(problem)) for problem in part]
            found = bootstrap.mean(scores, [problem.collection_id for problem in part])
            cells.append(f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200, help="problems of each size")
    parser.add_argument("--fitted", type=int, default=2000, help="training problems")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for labels in (False, True):
        print_table(options.problems, options.fitted, labels, options.seed)


if __name__ == "__main__":
    main()
