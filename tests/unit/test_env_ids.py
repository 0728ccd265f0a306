"""Ids of generated problems: they predict no gold, and no draw depends on them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mode
from typing import Literal

import pandas as pd

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
    return problem.model_copy(update={"problem_id": f"{collection}-0", "collection_id": collection})


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


def hits(columns: Columns, gold: Sequence[int], known: slice, rest: slice) -> int:
    """Gold counts of `rest` that the column predicts which predicts those of `known` best."""
    usual = mode(gold[known])

    def right(values: Sequence[int], part: slice) -> int:
        seen = list(zip(values[known], gold[known], strict=True))
        guess = {v: mode(n for value, n in seen if value == v) for v in set(values[known])}
        asked = zip(values[part], gold[part], strict=True)
        return sum(guess.get(value, usual) == count for value, count in asked)

    return right(max(columns.values(), key=lambda values: right(values, known)), rest)


def predicted(problems: Sequence[Problem]) -> tuple[float, float]:
    """Share of gold counts that a client predicts, and that of always naming the usual count."""
    right = usual = 0
    for level in LEVELS:
        gold = [len(problem.gold_papers) for problem in problems if problem.difficulty == level]
        columns, middle = visible(problems, level), len(gold) // 2
        for known, rest in pairwise((slice(middle), slice(middle, None), slice(middle))):
            right += hits(columns, gold, known, rest)
        usual += gold.count(mode(gold))
    return right / len(problems), usual / len(problems)


def test_nothing_that_a_client_sees_at_reset_predicts_the_number_of_gold_papers() -> None:
    assert len(world("test", 100)) == 900
    share, base = predicted(world("test", 100))
    # Three standard deviations of 300 collections, whose questions hit or miss together.
    assert share < base + 3 * (base * (1 - base) / 300) ** 0.5


def test_speaking_ids_would_predict_it() -> None:
    share, _ = predicted([numbered(problem, n) for n, problem in enumerate(world("test", 100))])
    assert share > 0.99  # a count that one half lacks cannot be learnt


def test_a_problem_depends_on_the_seed_and_not_on_how_many_others_there_are() -> None:
    again = generate(SyntheticSettings(collections={"train": 2, "test": 1}, seed=5))
    other = generate(SyntheticSettings(collections={"test": 1}, seed=6))
    known = {problem.problem_id: problem for problem in world("test", 100)}
    assert all(known[p.problem_id] == p for p in again if p.split == "test")
    assert not {problem.problem_id for problem in other} & known.keys()
    texts = {paper.text for problem in known.values() for paper in problem.papers}
    assert not texts & {paper.text for problem in other for paper in problem.papers}


def renamed(turn: int) -> list[dict[str, str]]:
    """The same problems under a set of ids of its own."""
    rows = [to_row(problem) for problem in world("train", 12)]
    for row in rows:
        row["collection_id"] = str(Random(f"{turn} {row['collection_id']}").random())
        row["problem_id"] = f"{row['collection_id']}-{Random(f'{turn} {row}').random()}"
    return rows


def test_no_stage_draws_other_problems_under_other_ids(tmp_path: Path) -> None:
    drawn = []
    for turn in range(2):
        path, rows = tmp_path / f"{turn}.parquet", renamed(turn)
        pd.DataFrame(rows).to_parquet(path)
        texts = {row["problem_id"]: row["question"] + row["papers"] for row in rows}
        specs = [
            *(spec for level in gate.by_level(path, seed=0).values() for spec in level),
            *(spec for level in read_problems(path, LEVELS).values() for spec in level),
            *evaluate.choose(path, 12, seed=0),
        ]
        drawn.append([(texts[spec.problem_id], spec.seed) for spec in specs])
    assert drawn[0] == drawn[1]
