"""The server's problems."""

import json
from pathlib import Path

import pandas as pd
import pytest
from helpers.problem_files import write_problems

from agent.rollouts.specs import read_specs
from env.errors import ProblemError, SettingsError
from env.problems.fields import SyntheticSettings
from env.problems.schema import to_row
from env.problems.store import ProblemStore

SMALL = SyntheticSettings(collections={"train": 3, "validation": 1, "test": 2})


@pytest.fixture(scope="module")
def store() -> ProblemStore:
    return ProblemStore.generate(SMALL)


@pytest.fixture(scope="module")
def folder(store: ProblemStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problems")
    write_problems(path / "test.parquet", map(store.get, store.ids("test")))
    return path


def test_the_question_with_the_most_gold_papers_counts_if_its_par_does(store: ProblemStore) -> None:
    problems = [store.get(i).model_copy(update={"candidates": ()}) for i in store.ids()]
    rows = [to_row(problem) for problem in problems]
    most = max(len(problem.gold_papers) for problem in problems)
    for kept in (problems, rows):
        assert ProblemStore(kept, "here").most_gold_papers() == most > 1
    assert store.most_gold_papers() == 0  # par is of tokens


def test_a_client_reads_public_columns_only(folder: Path, store: ProblemStore) -> None:
    specs = read_specs(folder / "test.parquet")
    assert [spec.problem_id for spec in specs] == store.ids("test")
    problem = store.get(specs[0].problem_id)
    public = {"problem_id", "difficulty", "collection_id", "tier"}
    assert vars(specs[0]) == {"seed": 0, **problem.model_dump(include=public)}


def test_missing_data_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="prepare"):
        ProblemStore.load(tmp_path)
    with pytest.raises(SettingsError, match="prepare"):
        read_specs(tmp_path / "test.parquet")
    pd.DataFrame({"problem_id": ["a"]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(SettingsError, match="evidence"):
        ProblemStore.load(tmp_path)


def test_data_of_an_earlier_version_says_what_to_do(folder: Path) -> None:
    path = folder / "test.parquet"
    pd.read_parquet(path).rename(columns={"collection_id": "group_id"}).to_parquet(path)
    says = r"columns \['collection_id'\] are missing.*Run the stage `prepare` again"
    for read in (lambda: ProblemStore.load(folder), lambda: read_specs(path)):
        with pytest.raises(SettingsError, match=says):
            read()


def test_a_broken_row_is_named_without_its_gold(store: ProblemStore) -> None:
    row = store.get(store.ids()[0]).model_dump(mode="json")
    row["papers"] = json.dumps(row["papers"])
    row["evidence"] = json.dumps([{"fact_id": "f", "spans": [{"text": "secret gold"}]}])
    with pytest.raises(ProblemError, match=row["problem_id"]) as caught:
        ProblemStore([row], "test").get(row["problem_id"])
    assert "secret gold" not in str(caught.value)


def test_an_id_stands_once(store: ProblemStore) -> None:
    problem = store.get(store.ids()[0])
    with pytest.raises(SettingsError, match="twice"):
        ProblemStore([problem, problem], "test")
