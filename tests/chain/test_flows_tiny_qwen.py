"""The profile tiny-qwen: a Qwen3 in NF4 learns by demonstrations, then by GRPO on one adapter.

The chain of seed 0 is killed once in its training. Seeds 1 and 2 train on the same base.
tests/integration/test_tasks_source_model.py goes the same path with few steps in a minute, and
asserts no learning.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
from helpers.chain_runs import copy_project, in_folder, runs

from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.training import checkpoints
from tasks import evaluate, train
from tasks.config import resolve
from tasks.deployment.local import local_server
from tasks.params import Params

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
COPIED = (
    *("agent", "env", "flows", "mlflow", "profiles", "rewards", "tasks"),
    *(".dvc/config", ".dvcignore", "dvc.yaml", "params.yaml", "constraints.txt"),
)
FLOW = [sys.executable, "-m", "flows.pipeline"]
PROFILE = ["--profile", "tiny-qwen"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A copy of the project's code, without git, in which the chain is played."""
    copy_project(tmp_path, COPIED)
    with in_folder(tmp_path):
        yield tmp_path


def start() -> subprocess.Popen[bytes]:
    """Start the chain, as `make full` does, in a process group of its own."""
    return subprocess.Popen([*FLOW, "run", *PROFILE], start_new_session=True)


def kill_in_training(chain: subprocess.Popen[bytes]) -> None:
    """Kill the chain with all its processes after the first checkpoint of the training."""
    try:
        while not checkpoints.steps(train.CHECKPOINTS):
            assert chain.poll() is None, "the chain ended before a checkpoint"
            time.sleep(0.1)
    finally:
        os.killpg(chain.pid, signal.SIGKILL)
        chain.wait()
    assert not train.RESULT["lora"].exists()


def mean_reward(params: Params, model: Path) -> float:
    """Mean sampled reward of a model on the problems of the evaluation."""
    specs = evaluate.choose(evaluate.TEST, 60, params.evaluate.seed)
    policy = TransformersPolicy(*load_model(model), params.evaluate.generation)
    with local_server(params, data=evaluate.TEST.parent) as url:
        episodes = play(policy, url, specs, sessions=60)
    return fmean(episode.reward or 0.0 for episode in episodes)


def gain() -> dict[str, Any]:
    """Sampled reward before and after GRPO, and the interval of the paired difference."""
    report: dict[str, Any] = json.loads(evaluate.REPORT.read_text())["reward"]
    return report


def gain_of(seed: int) -> dict[str, Any]:
    """The same of GRPO with another seed, on the same base and demonstrations."""
    resolved = ["resolve", *PROFILE, "--set", f"train.seed={seed}"]
    for words in (resolved, ["train"], ["export"], ["evaluate"]):
        subprocess.run([*FLOW, *words], check=True)
    return gain()


def test_demonstrations_then_grpo_improve_a_quantised_model_and_a_killed_run_goes_on(
    project: Path,
) -> None:
    kill_in_training(start())
    assert start().wait() == 0
    assert runs("train")[0].data.tags["start"].startswith("resuming after step ")
    params = resolve("tiny-qwen")
    steps = list(range(1, params.train.steps + 1))
    assert list(pd.read_parquet("reports/train.parquet")["step"]) == steps
    assert runs("register")[0].info.status == "FINISHED"

    bare = project / "bare"
    shutil.copytree("models/base", bare, ignore=shutil.ignore_patterns("adapter"))
    assert mean_reward(params, bare) < 0.10
    for found in (gain(), gain_of(1), gain_of(2)):
        assert 0.25 <= found["before"] <= 0.50  # demonstrations alone, the control
        assert found["difference"] >= 0.05
        assert found["ci95"][0] > 0
