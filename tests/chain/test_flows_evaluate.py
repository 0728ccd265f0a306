"""`rlm/evaluate` as a flow: what the run after a killed one finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.config.params import Params
from tasks.tracking import runs
from tasks.tracking.runs import StageRun

pytestmark = pytest.mark.xdist_group("prefect")  # so that one process imports it
ROOT = Path(__file__).parents[2]
TOLD: dict[str, Any] = {
    "model": "rlm/1",
    "n": 240,
    "f1_greedy": 0.981,
    "f1_sampled": 0.854,
    "reward_mean": 0.93,
    "latency": {"one_at_a_time": {"p50_s": 0.2, "p95_s": 0.4}},
    "cost": {"per_episode": 0.0123},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> Path:
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.notifications.link_to", lambda _: None)
    return tmp_path


def test_an_evaluation_that_is_killed_is_closed_by_the_next_run(here, monkeypatch):
    from flows import chain, evaluate

    marked: list[dict[str, Any]] = []
    kept: list[str] = []

    def play(params: Any, run: StageRun, *_: object) -> Path:
        kept.append(chain.MARK.read_text())
        marked.append(json.loads(kept[-1]))
        assert marked[-1]["run_id"] == run.run_id
        path = here / "report.json"
        path.write_text(json.dumps(TOLD))
        return path

    monkeypatch.setattr(evaluate.evaluate_model, "measure_model", play)
    assert evaluate.evaluate.fn().is_completed()
    assert not chain.MARK.exists()

    # As a SIGKILL leaves it: the mark of a process that is gone, the run still open.
    run = runs.start_run("evaluate_model", Params())
    chain.MARK.write_text(json.dumps({**marked[0], "run_id": run.run_id, "process": "999999999"}))
    assert evaluate.evaluate.fn().is_completed()
    assert run.client.get_run(run.run_id).info.status == "KILLED"
