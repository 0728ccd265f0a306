"""Two processes that share a training, against one that trains alone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers import rank_cases
from helpers.sandbox_events import wait_for
from helpers.tiny_trees import SETTINGS, make_trainer

from agent.errors import RankError
from agent.training import ranks

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]
CASES: dict[str, Any] = {"short": {"max_step_kl": 1e-4}, "row by row": {"micro_batch_tokens": 1}}
NIGHTLY: dict[str, dict[str, Any]] = {
    "one batch": {"micro_batch_tokens": 1000, "scale_rewards": "group"},
    # Adam divides by small gradients, whose last digits grow with the rate.
    "no scale": {"scale_rewards": "none", "learning_rate": 2e-3},
}


def run_ranks(patch: pytest.MonkeyPatch, python: str, folder: Path, cases: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / rank_cases.JOB).write_text(json.dumps(cases))
    patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    patch.setattr(sys, "executable", python)
    ranks.launch("helpers.rank_cases", folder, processes=2, threads=1)


def weights_of(folder: Path, name: str, rank: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / f"{name}.{rank}.pt")
    return found


def check_against_one(folder: Path, name: str, settings: dict[str, Any]) -> None:
    log: list[tuple[int, dict[str, float]]] = []
    changed = SETTINGS.model_validate(SETTINGS.model_dump() | settings)
    alone = make_trainer(folder / f"{name} alone", changed, log=log)
    start = {n: p.detach().clone() for n, p in alone.live_model.named_parameters()}
    alone.resume(None)
    one, other = (weights_of(folder, name, rank) for rank in (0, 1))
    assert one
    for weight, value in alone.live_model.named_parameters():
        if value.requires_grad:
            assert torch.equal(one[weight], other[weight]), weight
            torch.testing.assert_close(one[weight], value, rtol=0, atol=1e-6)
    assert max(float((one[n] - start[n]).abs().max()) for n in one) > 1e-3
    shared = json.loads((folder / f"{name}.json").read_text())
    for (step, mine), (other_step, theirs) in zip(shared, log, strict=True):
        assert step == other_step
        assert mine.keys() == theirs.keys()
        for figure in ("loss", "grad_norm", "train/step_kl", "train/step_scale"):
            assert mine[figure] == pytest.approx(theirs[figure], rel=1e-3, abs=1e-6), figure
        assert mine["train/rows"] == theirs["train/rows"]


def test_two_ranks_train_like_one_resume_and_undo_a_nan_of_one(tmp_path, monkeypatch, warm):
    folder = tmp_path / "two"
    cases: dict[str, Any] = {name: {"settings": settings} for name, settings in CASES.items()}
    cases["resumed"] = {"settings": CASES["short"], "start": str(folder / "short/checkpoint-2")}
    cases["nan"] = {"settings": CASES["short"], "nan_at": 2}
    run_ranks(monkeypatch, warm, folder, cases)
    for name, settings in CASES.items():
        check_against_one(folder, name, settings)
    whole, resumed = (weights_of(folder, name, 0) for name in ("short", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    parts = (folder / f"{name}.json" for name in ("short", "resumed"))
    log, later = (json.loads(part.read_text()) for part in parts)
    assert [step for step, _ in later] == [3, 4]
    assert min(figures["train/step_scale"] for _, figures in log) < 1  # the limit did bite

    one, other = (json.loads((folder / f"nan.{rank}.json").read_text()) for rank in (0, 1))
    assert one == other
    scales, moments, weights = zip(*one, strict=True)
    assert [scale == 0 for scale in scales] == [False, True, False, False]
    assert [count == 0 for count in moments] == [False, True, False, False]
    assert [now == before for before, now in pairwise(weights)] == [True, False, False]
    assert min(scales[0], *scales[2:]) < 1  # the limit did bite


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_two_ranks_train_like_one_in_other_configurations(tmp_path, monkeypatch, warm, name):
    run_ranks(monkeypatch, warm, tmp_path / "two", {name: {"settings": NIGHTLY[name]}})
    check_against_one(tmp_path / "two", name, NIGHTLY[name])


FAILING = [
    ({"raises": {"fails_at": 2, "how": "raise"}}, "rank 1: ValueError: no more"),
    ({"killed": {"fails_at": 2, "how": "kill"}}, r"rank 1: ended (by SIGKILL|with code 137)"),
    ({"differ": {}}, "rank 1 differs from the stage in training data"),
]


@pytest.mark.parametrize(("case", "told"), FAILING)
def test_a_rank_that_fails_or_differs_is_named_and_all_end(tmp_path, monkeypatch, warm, case, told):
    with pytest.raises(RankError, match=told):
        run_ranks(monkeypatch, warm, tmp_path, case)
    assert not (tmp_path / "differ").exists()  # it is refused before anything is played
    check_all_ended(tmp_path)


WAITS = {"waits": {"fails_at": 2, "how": "wait"}}


def test_a_signal_to_the_stage_ends_all_ranks(tmp_path, monkeypatch, warm):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def end_once_it_waits() -> None:
        while not (tmp_path / rank_cases.WAITING).exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        threading.Thread(target=end_once_it_waits, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            run_ranks(monkeypatch, warm, tmp_path, WAITS)
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)
    check_all_ended(tmp_path)


@pytest.mark.nightly
def test_ranks_end_with_a_stage_that_is_killed(tmp_path, monkeypatch):
    (tmp_path / rank_cases.JOB).write_text(json.dumps(WAITS))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    code = (
        "from pathlib import Path; from agent.training import ranks; "
        f"ranks.launch('helpers.rank_cases', Path({str(tmp_path)!r}), 2, 1)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as stage:
        while not (tmp_path / rank_cases.WAITING).exists():
            assert stage.poll() is None
            time.sleep(0.05)
        stage.kill()
    check_all_ended(tmp_path)


def check_all_ended(folder: Path) -> None:
    """No process of the ranks is left a moment after the launcher's end."""
    pids = [int(line) for line in (folder / rank_cases.STARTED).read_text().split()]
    assert len(pids) == 2
    assert wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), 5)
