"""Stage `prepare`: what lands on disk, and what is rejected."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.changed import changed, write_params
from helpers.recorder import recorded

from env.problems.fields import generate
from env.problems.schema import CANDIDATES, COLUMNS, Problem, from_row
from flows import stages
from tasks import paths, prepare
from tasks.config import parse_params, prepared
from tasks.config.params import Params
from tasks.data.rows import Found, Rejected
from tasks.errors import ConfigError, StageError


def settings(**synthetic: Any) -> Params:
    synthetic = {"collections": {"train": 4, "validation": 2, "test": 2}} | synthetic
    return parse_params({"prepare": {"synthetic": synthetic}}, "test")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stored() -> list[Problem]:
    """The problems of all files."""
    return [
        from_row(row)
        for split in prepare.SPLITS
        for row in pd.read_parquet(f"data/problems/{split}.parquet").to_dict("records")
    ]


def test_it_writes_a_file_per_split_that_gives_the_problems_back(place: Path) -> None:
    record = recorded(prepare, params := settings())
    assert stored() == generate(params.prepare.synthetic)
    assert tuple(pd.read_parquet("data/problems/test.parquet").columns) == (*COLUMNS, CANDIDATES)
    assert record.metrics["data/train_rows"] == 4 * 3 * 3
    assert record.artifacts == [Path("data/report.json")]


def test_a_failed_run_leaves_the_old_data(place: Path) -> None:
    recorded(prepare, settings())
    before = Path("data/problems/test.parquet").read_bytes()
    empty = settings(collections={"train": 4, "validation": 2})
    with pytest.raises(StageError, match=r"collections\.test"):
        recorded(prepare, empty)
    assert Path("data/problems/test.parquet").read_bytes() == before
    assert sorted(p.name for p in Path("data").iterdir()) == ["problems", "report.json"]


# --- the source files ---


def own(topic: str, **changes: Any) -> dict[str, Any]:
    fact = f"{topic} scores 42 points on\nthe data set {topic}."
    papers = [{"paper_id": "p", "text": f"About {topic}. {fact} So much for {topic}."}]
    evidence = [{"paper_id": "p", "quote": fact.replace("\n", " ")}]
    return {"question": f"What about {topic}?", "papers": papers, "evidence": evidence, **changes}


TOPICS = ("Kalvot", "Mirbex", "Dorvek", "Jedgeb")


def of_files(rows: list[dict[str, Any]]) -> Params:
    path = Path("mine.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return parse_params({"prepare": {"source": "files", "files": {"path": str(path)}}}, "test")


def test_a_users_file_becomes_the_data(place: Path) -> None:
    record = recorded(prepare, of_files([*map(own, TOPICS), own("Toxlim", question=3)]))
    assert {one.question for one in stored()} == {f"What about {topic}?" for topic in TOPICS}
    report = json.loads(Path("data/report.json").read_text())
    assert report["source"] == "files"
    assert (report["rejected"], report["quotes"]["normalised"]) == (1, 5)  # of the rejected, too
    (fault,) = report["rejected_rows"]
    assert set(fault) == {"row", "field", "reason", "remedy"}
    assert (fault["row"], fault["field"]) == ("mine.jsonl:5", "question")
    assert record.metrics["data/quotes_normalised"] == 5
    assert record.metrics["data/rejected_rows"] == 1


def test_too_many_rejected_rows_stop_the_stage_and_are_named(place, caplog, monkeypatch):
    rows = [*map(own, TOPICS), *(own(f"Bad{i}", question=i) for i in range(6))]
    with pytest.raises(StageError) as caught:
        recorded(prepare, of_files(rows))
    assert "6 of 10 rows were rejected" in str(caught.value)
    assert "mine.jsonl:5: question: is 0, not text" in str(caught.value)
    assert not Path("data").exists()
    monkeypatch.setattr(prepare, "MAX_REJECTED", 0.6)
    recorded(prepare, of_files(rows))
    assert "prepare: rejected rows: 6" in caplog.text


def test_headings_hide_no_rejected_questions(place: Path) -> None:
    params = changed(of_files([*map(own, TOPICS)]), prepare={"files": {"headings": "manual"}})
    one = generate(settings().prepare.synthetic)[0]
    found = [one.model_copy(update={"split": split}) for split in ("test", *["train"] * 36)]
    faults = [Rejected(f"mine.jsonl:{line}", "question", "is bad", "mend it") for line in "123"]
    with pytest.raises(StageError, match="3 of 4 rows were rejected"):
        prepare.require_trainable(params, Found(found, faults))


def test_a_source_that_gives_too_little_is_refused(place: Path) -> None:
    with pytest.raises(StageError, match="three are needed"):
        recorded(prepare, of_files([own("Kalvot"), own("Mirbex")]))
    with pytest.raises(ConfigError, match="does not exist"):
        recorded(prepare, parse_params({"prepare": {"source": "files"}}, "test"))


def test_problems_of_other_settings_are_refused(place: Path) -> None:
    params = Params()
    prepared.require_current(params)  # nothing was prepared: the stage itself says so
    report = {"source": "synthetic", prepared.KEY: prepared.digest(params)}
    paths.PREPARED.parent.mkdir()
    paths.PREPARED.write_text(json.dumps(report))
    prepared.require_current(params)
    for other in ({"rewards": {"min_span_chars": 99}}, {"prepare": {"source": "files"}}):
        with pytest.raises(StageError, match=r"other settings.*source: synthetic.*rlm prepare"):
            prepared.require_current(parse_params(other, "test"))
    write_params(parse_params(other, "test"))
    for stage in ("validate", "promote"):
        with pytest.raises(StageError, match="other settings"):
            stages.run_stage(stage)
    paths.PREPARED.write_text(json.dumps({"source": "synthetic"}))  # of an earlier version
    prepared.require_current(params)
