"""Stage `validate`: good data passes, and each kind of bad data is named by its rows."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.recorder import recorded

from env.problems.fields import generate
from tasks import paths, prepare, validate
from tasks.config import parse_params
from tasks.errors import StageError

PARAMS = parse_params(
    {"prepare": {"synthetic": {"collections": {"train": 8, "validation": 8, "test": 8}}}}, "test"
)

PROBLEMS = generate(PARAMS.prepare.synthetic)
TEST = [problem.problem_id for problem in PROBLEMS if problem.split == "test"]
"""Ids in the order of the rows."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the stage prepare has run; tests change copies of it."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        recorded(prepare, PARAMS)
    return folder


def rewrite(split: str, change: Callable[[pd.DataFrame], Any]) -> None:
    path = paths.PROBLEMS / f"{split}.parquet"
    frame = pd.read_parquet(path)
    changed = change(frame)
    (frame if changed is None else changed).to_parquet(path)


def edit(column: str, value: Any) -> Callable[[Any], None]:
    """Set one cell of a row; a function is applied to what it holds."""

    def change(row: Any) -> None:
        row[column] = value(row[column]) if callable(value) else value

    return change


def copy_papers(row: Any) -> None:
    """Give a row the papers and gold of a row of train."""
    other = pd.read_parquet(paths.TRAIN).loc[0]
    for column in ("papers", "evidence", "tier"):
        row[column] = other[column]


def test_prepared_data_passes_and_the_page_is_there(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(prepared, tmp_path / "data"))
    record = recorded(validate, PARAMS)
    report = json.loads(validate.REPORT.read_text())
    assert report["success"] is True
    assert report["rows"] == {"train": 72, "validation": 72, "test": 72}
    assert len(report["checks"]) == record.metrics["data/checks"] > 8
    assert record.metrics["data/failed_checks"] == 0
    assert (validate.DOCS / "index.html").is_file()


def replace(column: str, old: str, new: str) -> Callable[[Any], None]:
    return edit(column, lambda held: held.replace(old, new, 1))


ROWS: dict[str, tuple[Callable[[Any], None], str]] = {
    "no value": (edit("difficulty", None), "is a problem by the schema"),
    "gold with a space": (replace("evidence", '"text": "', '"text": " '), "by the schema"),
    "no candidates": (edit("candidates", None), "the lexicon alone decides"),
    "no JSON": (edit("papers", "{"), "is a problem by the schema"),
    "another split": (edit("split", "train"), "in the file of its split"),
    "an unknown difficulty": (edit("difficulty", "brutal"), "settings' levels"),
    "a wrong tier": (edit("tier", "wide_net"), "is a problem by the schema"),
    "a collection of train": (edit("collection_id", PROBLEMS[0].collection_id), "No collection is"),
    "papers of train": (copy_papers, "occurs in two splits"),
    "an empty question": (edit("question", ""), "is a problem by the schema"),
    "a paper too long": (replace("papers", '."}', "." + "x" * 200_000 + '"}'), "by the schema"),
}
"""For each case what is done to a row, and which check must name it."""


def refused(prepared: Path, copy: Path, *edits: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Checks of the report on a copy of the data with changed files, and lines of the message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shutil.copytree(prepared, copy))
        for split, change in edits:
            rewrite(split, change)
        with pytest.raises(StageError) as stopped:
            recorded(validate, PARAMS)
        return json.loads(validate.REPORT.read_text())["checks"], str(stopped.value).splitlines()


def test_a_bad_row_is_named_by_the_check_it_breaks(prepared: Path, tmp_path: Path) -> None:
    """Every case has a row of its own, of a collection of its own."""
    broken = TEST[: 3 * len(ROWS) : 3]

    def break_rows(frame: pd.DataFrame) -> None:
        for number, (change, _) in enumerate(ROWS.values()):
            row = frame.loc[3 * number].copy()
            change(row)
            frame.loc[3 * number] = row

    checks, message = refused(prepared, tmp_path / "data", ("test", break_rows))
    for name, (case, (_, said)) in zip(broken, ROWS.items(), strict=True):
        (check,) = (one for one in checks if said in one["expectation"])
        assert check["success"] is False, case
        assert any(row.startswith(name) for row in check["rows"]), case
        assert any(said in line for line in message), case
        # No other row of the split is named.
        assert {row.split(" ")[0] for row in check["rows"]} & {*TEST} <= {*broken}, case


FILES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame], str, str]] = {
    "a difficulty that is rare": (
        "train",
        lambda f: f[(f.difficulty != "hard") | (f.index % 8 == 0)],
        "validate.difficulty_share",
        "hard 3 (validate.difficulty_share 0.1)",
    ),
    "too few rows": ("test", lambda f: f.iloc[:10], "min_rows", "rows 11 (validate.min_rows 20)"),
    "a column too many": ("test", lambda f: f.assign(score=1), "columns of the files", "score"),
    "a column too few": ("test", lambda f: f.drop(columns="tier"), "by the schema", TEST[0]),
    "a row twice": ("test", lambda f: pd.concat([f, f.iloc[:1]]), "occurs twice", TEST[0]),
}
"""For each case a file and what is done to it, the check that fails, and what it must name."""


def test_a_file_that_is_wrong_as_a_whole_stops_the_chain(prepared: Path, tmp_path: Path) -> None:
    edits = [(split, change) for split, change, _, _ in FILES.values()]
    _, complaints = refused(prepared, tmp_path / "data", *edits)
    for case, (_, _, said, named) in FILES.items():
        (line,) = (line for line in complaints if said in line)
        assert named in line, case


def test_gold_too_short_to_be_found_is_a_fault() -> None:
    assert validate.gold_fault(PROBLEMS[0], 12) is None
    assert "is shorter than rewards.min_span_chars" in str(validate.gold_fault(PROBLEMS[0], 99))
