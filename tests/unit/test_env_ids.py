"""Ids of generated problems: they predict no gold, and no draw depends on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal

import pandas as pd
import pytest

from env.problems.fields import SyntheticSettings, generate
from env.problems.schema import Problem, to_row
from env.problems.store import ProblemStore
from tasks import evaluate, gate
from tasks.training.problem_data import read_problems

LEVELS = ("easy", "medium", "hard")
Columns = Mapping[str, Sequence[int]]


@cache
def world(split: Literal["train", "test"], collections: int) -> list[Problem]:
    return generate(SyntheticSettings(collections={split: collections}, seed=5))


def numbered(problem: Problem, number: int) -> Problem:
    """The problem under a speaking id, whose remainder by 12 is the number of gold papers."""
    collection = f"test-{problem.difficulty}-{12 * number + len(problem.gold_papers):04x}"
    ids = {"problem_id": f"{collection}-0", "collection_id": collection}
    return problem.model_copy(update=ids)


def visible(problems: Sequence[Problem], level: str) -> Columns:
    """Numbers that a client knows before the end of an episode, for each problem of a level."""
    store = ProblemStore(problems, "test")
    members = [problem for problem in problems if problem.difficulty == level]
    seeds = {store.pick("test", level, seed).problem_id: seed for seed in range(len(members))}
    ids = sorted(seeds)
    collections = sorted({problem.collection_id for problem in members})
    columns: dict[str, list[int]] = defaultdict(list)
    for problem in members:
        number, question = (int(part, 16) for part in problem.problem_id.split("-")[2:])
        places = {
            "id": number,
            "rank": ids.index(problem.problem_id),
            "collection": collections.index(problem.collection_id),
            "seed": seeds[problem.problem_id],
        }
        for name, place in places.items():
            for modulus in range(2, 13):
                columns[f"{name} mod {modulus}"].append(place % modulus)
                columns[f"3 {name} + q mod {modulus}"].append((3 * place + question) % modulus)
        columns["q"].append(question)
        columns["characters"].append(sum(len(paper.text) for paper in problem.papers) // 100)
    return columns


def best_column(columns: Columns, gold: Sequence[int], half: slice) -> dict[int, int]:
    """Predictions on the other half by the column that predicts this half best."""

    def votes(values: Sequence[int]) -> dict[int, Counter[int]]:
        found: dict[int, Counter[int]] = defaultdict(Counter)
        for value, count in zip(values[half], gold[half], strict=True):
            found[value][count] += 1
        return found

    def hits(values: Sequence[int]) -> int:
        return sum(counter.most_common(1)[0][1] for counter in votes(values).values())

    values = max(columns.values(), key=hits)
    learned = votes(values)
    rest = [n for n in range(len(gold)) if n not in range(*half.indices(len(gold)))]
    likely = Counter(gold[half]).most_common(1)[0][0]
    return {
        n: learned[values[n]].most_common(1)[0][0] if learned[values[n]] else likely for n in rest
    }


def predicted(problems: Sequence[Problem]) -> tuple[float, float]:
    """Share of gold counts that a client predicts, and that of always naming the usual count."""
    right = usual = 0
    for level in LEVELS:
        gold = [len(problem.gold_papers) for problem in problems if problem.difficulty == level]
        columns = visible(problems, level)
        for half in (slice(0, len(gold) // 2), slice(len(gold) // 2, None)):
            found = best_column(columns, gold, half)
            right += sum(gold[n] == count for n, count in found.items())
        usual += Counter(gold).most_common(1)[0][1]
    return right / len(problems), usual / len(problems)


def test_nothing_that_a_client_sees_at_reset_predicts_the_number_of_gold_papers() -> None:
    assert len(world("test", 100)) == 900
    share, base = predicted(world("test", 100))
    # Three standard deviations of 300 collections, whose questions hit or miss together.
    assert share < base + 3 * (base * (1 - base) / 300) ** 0.5


def test_speaking_ids_would_predict_it() -> None:
    share, _ = predicted([numbered(problem, n) for n, problem in enumerate(world("test", 100))])
    assert share > 0.99  # a count that one half lacks cannot be learnt


def test_an_id_depends_on_the_seed_and_on_nothing_else() -> None:
    again = generate(SyntheticSettings(collections={"test": 1}, seed=5))
    other = generate(SyntheticSettings(collections={"test": 1}, seed=6))
    ids = {problem.problem_id for problem in world("test", 100)}
    assert {problem.problem_id for problem in again} <= ids
    assert not {problem.problem_id for problem in other} & ids


@pytest.fixture
def tables(tmp_path: Path) -> list[tuple[Path, dict[str, str]]]:
    """The same problems under two sets of ids: the file, and each id's question and papers."""
    found = []
    for turn in range(2):
        rows = [to_row(problem) for problem in world("train", 12)]
        names = [f"c{n:02}" for n in range(len({row["collection_id"] for row in rows}))]
        Random(turn).shuffle(names)
        by_collection = dict(
            zip(dict.fromkeys(r["collection_id"] for r in rows), names, strict=True)
        )
        for row in rows:
            row["collection_id"] = by_collection[row["collection_id"]]
            row["problem_id"] = f"{row['collection_id']}-{Random(f'{turn}{row}').random()}"
        path = tmp_path / f"{turn}.parquet"
        pd.DataFrame(rows).to_parquet(path)
        found.append((path, {row["problem_id"]: row["question"] + row["papers"] for row in rows}))
    return found


def test_no_stage_draws_other_problems_under_other_ids(tables):
    drawn = []
    for path, texts in tables:
        specs = [
            *(spec for level in gate.by_level(path, seed=0).values() for spec in level),
            *(spec for level in read_problems(path, LEVELS).values() for spec in level),
            *evaluate.choose(path, 12, seed=0),
        ]
        drawn.append([(texts[spec.problem_id], spec.seed) for spec in specs])
    assert drawn[0] == drawn[1]
