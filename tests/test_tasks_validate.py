"""Stage `validate`: good data passes, and each kind of bad data is named by its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tasks import prepare, validate
from tasks.config import Params, check
from tasks.errors import StageError

PARAMS = check(
    {
        "prepare": {"synthetic": {"groups": {"train": 8, "validation": 8, "test": 8}}},
        "validate": {"max_text_chars": 300},
    },
    "test",
)


class Recorder:
    """Stands in for the MLflow run of a stage."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics |= metrics

    def log_artifact(self, path: Path) -> None:
        assert path.exists()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare.run(PARAMS, Recorder())  # type: ignore[arg-type]
    return prepare.PROBLEMS


def run(params: Params = PARAMS) -> Recorder:
    record = Recorder()
    validate.run(params, record)  # type: ignore[arg-type]
    return record


def rewrite(split: str, change: Callable[[pd.DataFrame], Any]) -> None:
    path = prepare.PROBLEMS / f"{split}.parquet"
    frame = pd.read_parquet(path)
    changed = change(frame)
    (frame if changed is None else changed).to_parquet(path)


def edit(row: int, column: str, value: Any) -> Callable[[pd.DataFrame], None]:
    """Set one cell; a function is applied to what it holds."""

    def change(frame: pd.DataFrame) -> None:
        old = frame.loc[row, column]
        frame.loc[row, column] = value(old) if callable(value) else value

    return change


def copy_papers(frame: pd.DataFrame) -> None:
    """Give the first row of a split the papers and gold of a row of train."""
    row = pd.read_parquet(prepare.PROBLEMS / "train.parquet").loc[0]
    for column in ("papers", "evidence", "tier"):
        frame.loc[0, column] = row[column]


def test_prepared_data_passes_and_the_page_is_there(data: Path) -> None:
    record = run()
    report = json.loads(validate.REPORT.read_text())
    assert report["success"] is True
    assert report["rows"] == {"train": 72, "validation": 72, "test": 72}
    assert len(report["checks"]) == record.metrics["data/checks"] > 20
    assert record.metrics["data/failed_checks"] == 0
    assert (validate.DOCS / "index.html").is_file()


FIRST = "test-easy-0000-0"
BROKEN: dict[str, tuple[Callable[[pd.DataFrame], Any], str, str]] = {
    "a column too many": (lambda f: f.assign(score=1), "columns of the files", "score"),
    "a column too few": (lambda f: f.drop(columns="question"), "`question` is there", FIRST),
    "no value": (edit(0, "difficulty", None), "`difficulty` is there", FIRST),
    "an id twice": (edit(0, "problem_id", "test-easy-0000-1"), "occurs twice", "test-easy-0000-1"),
    "gold moved by one": (
        edit(0, "evidence", lambda old: old.replace('"text": "', '"text": " ', 1)),
        "exactly what its paper holds",
        f"{FIRST} f1 p",
    ),
    "gold in a paper that is not there": (
        edit(0, "evidence", lambda old: old.replace('"paper_id": "p', '"paper_id": "q', 1)),
        "exactly what its paper holds",
        f"{FIRST} f1 q",
    ),
    "no JSON": (edit(0, "papers", "{"), "is a problem by the schema", FIRST),
    "no evidence": (edit(0, "evidence", "[]"), "is a problem by the schema", FIRST),
    "another split": (edit(0, "split", "train"), "in the file of its split", FIRST),
    "an unknown difficulty": (edit(0, "difficulty", "brutal"), "settings' levels", "brutal"),
    "a wrong tier": (edit(0, "tier", "wide_net"), "number of gold papers", FIRST),
    "a group in two splits": (
        edit(0, "group_id", "train-easy-0000"),
        "No group lies in two splits",
        "train-easy-0000-0",
    ),
    "papers in two splits": (copy_papers, "occurs in two splits", FIRST),
    "an empty question": (edit(0, "question", ""), "question is not empty", FIRST),
    "a paper too long": (
        edit(0, "papers", lambda old: old.replace('."}', "." + "x" * 300 + '"}', 1)),
        "no more than validate.max_text_chars",
        FIRST,
    ),
    "too few rows": (lambda f: f.iloc[:10], "validate.min_rows", "test"),
    "a difficulty that is rare": (
        lambda f: f[(f.difficulty != "hard") | (f.index % 8 == 0)],
        "least share",
        "test/hard",
    ),
    "a tier that is missing": (lambda f: f[f.tier != "wide_net"], "least share", "wide_net"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_bad_data_stops_the_chain_and_is_named(data: Path, case: str) -> None:
    change, check_said, row_said = BROKEN[case]
    rewrite("test", change)
    with pytest.raises(StageError) as stopped:
        run()
    message = str(stopped.value)
    assert check_said in message
    assert row_said in message
    assert "run prepare again" in message
    assert len(message) < 4000  # rows are named, contexts are not embedded
    report = json.loads(validate.REPORT.read_text())
    assert report["success"] is False
    assert (validate.DOCS / "index.html").is_file()


def test_gold_too_short_to_be_found_is_named(data: Path) -> None:
    strict = PARAMS.rewards.model_copy(update={"min_span_chars": 27})
    with pytest.raises(StageError, match="min_span_chars"):
        run(PARAMS.model_copy(update={"rewards": strict}))


def test_a_missing_file_says_what_to_run(data: Path) -> None:
    (data / "validation.parquet").unlink()
    with pytest.raises(StageError, match=r"validation\.parquet is missing; run the stage prepare"):
        run()


def test_a_file_that_is_no_parquet_says_so(data: Path) -> None:
    (data / "train.parquet").write_text("problem_id\n1\n")
    with pytest.raises(StageError, match=r"train\.parquet is not readable"):
        run()
