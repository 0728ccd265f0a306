"""Retraining: what is fresh, from whom it starts, and that it never fights another run."""

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import Completed, Failed

from flows import retrain, runtime
from tasks import config
from tasks.config.params import Params
from tasks.deployment.space_problems import GUESSABLE
from tasks.errors import StageError
from tasks.registry import champions, versions

ROOT = Path(__file__).parents[2]
NIGHT = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> Path:
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def version(number: int) -> Any:
    return SimpleNamespace(version=str(number), tags={"weights_hash": f"{number:016x}"})


def champion(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    monkeypatch.setattr(versions, "champion", lambda name: found)


def test_synthetic_data_is_fresh_by_date_and_a_secret_seed_gives_other_secret_ones() -> None:
    def seed(own: int, when: datetime) -> int:
        synthetic = {"prepare": {"synthetic": {"seed": own}}}
        fresh = retrain.fresh_data(Params.model_validate(synthetic), when)
        found = config.parse_override(*fresh.overrides)["prepare"]["synthetic"]["seed"]
        assert own < GUESSABLE or str(found) not in fresh.content  # which the run prints
        return int(found)

    secret = 2**90 + 7
    nights = [NIGHT, NIGHT.replace(hour=9), NIGHT.replace(day=30)]
    assert [seed(0, night) for night in nights] == [20261123, 20261123, 20261130]
    first, same, other = (seed(secret, night) for night in nights)
    assert first == same
    assert len({first, other, seed(secret + 1, NIGHT), secret}) == 4
    assert min(first, other) >= GUESSABLE


def test_a_watched_folder_is_fresh_when_its_content_changed(here: Path) -> None:
    (here / "papers").mkdir()
    (here / "papers/one.md").write_text("first")
    (here / "problems.jsonl").write_text("{}\n")
    files = {"source": "files", "files": {"path": "problems.jsonl", "documents": "papers"}}
    params = Params.model_validate({"prepare": files})
    before = retrain.fresh_data(params, NIGHT)
    assert retrain.fresh_data(params, NIGHT.replace(day=30)) == before
    (here / "papers/two.md").write_text("second")
    after = retrain.fresh_data(params, NIGHT)
    assert after.content != before.content
    (here / "problems.jsonl").write_text("{}\n{}\n")
    assert retrain.fresh_data(params, NIGHT).content not in (before.content, after.content)


def test_the_champion_is_pinned_by_its_number_and_weights(monkeypatch, here):
    champion(monkeypatch, version(3))
    start = retrain.champion_to_start_from(Params())
    params = config.resolve("nano", retrain.start_overrides(start))
    assert (params.warmstart.kind, params.warmstart.version) == ("champion", "3")
    assert params.warmstart.weights_hash == f"{3:016x}"
    assert "from rlm version 3, champion" in retrain.start_in_words(params)


def test_what_the_champion_was_trained_on_is_handed_to_prepare(monkeypatch, here):
    (here / "artifacts").mkdir()
    (here / "artifacts/trained.json").write_text('["a"]')
    monkeypatch.setattr(versions, "get_version", lambda name, number: version(int(number)))
    monkeypatch.setattr(versions, "artifact", lambda found: here)
    start = {"version": "3", "weights_hash": None}
    files = Params.model_validate({"prepare": {"source": "files"}})
    (override,) = retrain.trained_questions_override(start, files)
    splits = config.resolve("nano", [override]).prepare.splits
    assert json.loads(Path(splits.trained or "").read_text()) == ["a"]
    assert retrain.trained_questions_override(None, files) == []
    assert retrain.trained_questions_override(start, Params()) == []  # generated again
    (here / "artifacts/trained.json").unlink()
    assert retrain.trained_questions_override(start, files) == []


def test_only_a_completed_run_makes_its_data_nothing_new(monkeypatch, here):
    champion(monkeypatch, None)
    ends = [Failed(name="Gated", message="no"), *[Completed()] * 3]
    played: list[tuple[int, str]] = []

    def run_stages(params: Params, kind: str) -> Any:
        played.append((params.prepare.synthetic.seed, kind))
        return ends[len(played) - 1]

    monkeypatch.setattr(retrain, "run_stages", run_stages)
    told = [retrain.retrain.fn(date=f"2026-11-{day}") for day in (23, 23, 23, 30)]
    assert [state.name for state in told] == ["Gated", *["Completed"] * 3]
    assert "Nothing new: synthetic data of 20261123" in told[2].message
    edited = (here / "params.yaml").read_text().replace("  steps: 24\n", "  steps: 48\n")
    (here / "params.yaml").write_text(edited)
    assert retrain.retrain.fn(date="2026-11-30").name == "Completed"
    assert played == [(20261123, "retrain")] * 2 + [(20261130, "retrain")] * 2


class Stopped:
    """Retrainings whose first one is stopped after its challenger, version 4, became champion."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[str | None] = []
        self._patch = monkeypatch
        champion(monkeypatch, version(3))
        monkeypatch.setattr(retrain, "run_stages", self._through)
        monkeypatch.setattr(versions, "list_versions", lambda name: [version(3), version(4)])
        with pytest.raises(StageError, match="could not push"):
            retrain.retrain.fn(date="2026-11-23")

    def _through(self, params: Params, kind: str) -> Any:
        self.started.append(params.warmstart.version)
        if len(self.started) == 1:
            champion(self._patch, version(4))
            raise StageError("push: DVC could not push")
        return Completed()


def test_a_run_that_was_stopped_goes_on_from_the_champion_of_then(monkeypatch, here, capsys):
    runs = Stopped(monkeypatch)
    capsys.readouterr()
    retrain.retrain.fn(date="2026-11-23")
    assert "from rlm version 3, the champion when it began." in capsys.readouterr().out
    retrain.retrain.fn(date="2026-11-30")
    assert runs.started == ["3", "3", "4"]


@pytest.mark.parametrize("why", ["deleted", "rolled back", "another registry", "profile"])
def test_a_start_that_is_no_more_is_not_gone_on_from(monkeypatch, here, why):
    runs = Stopped(monkeypatch)
    third = version(3)
    if why == "rolled back":
        third.tags[champions.ROLLED_BACK] = "2026-11-24"
    if why == "another registry":
        third.tags["weights_hash"] = "f" * 16
    there = [version(4)] if why == "deleted" else [third, version(4)]
    monkeypatch.setattr(versions, "list_versions", lambda name: there)
    if why == "profile":
        settings = (here / "params.yaml").read_text()
        (here / "params.yaml").write_text(settings.replace("start: champion", "start: profile"))
    retrain.retrain.fn(date="2026-11-23")
    assert runs.started == ["3", None if why == "profile" else "4"]


def test_a_folder_that_stays_busy_cancels_the_run(here: Path) -> None:
    with runtime.exclusive():
        ended = retrain.retrain.fn(overrides=["retrain.wait_s=0.2"])
    assert ended.is_cancelled()
    assert "another run works in this folder (process " in ended.message
