"""The engine of a training: a server that dies under it, or keeps its first weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.changed import changed
from helpers.fake_vllm import FakeVllm, serving
from helpers.training_folder import make_folder
from helpers.vllm_trees import save_base
from safetensors.torch import load_file

from agent.rollouts.engine import play
from agent.rollouts.trajectory import Trajectory
from agent.training import logprob_check
from tasks import train
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking import lineage, runs

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]
SHORT = {
    "steps": 2,
    "problems_per_step": 2,
    "group_size": 3,
    "save_every": 1,
    "evaluate_every": 2,
    "evaluate_problems": 1,
    "resample_groups": 0,
    "min_group_std": 0.0,
}
TURNS = {"max_turn_tokens": 12, "max_frame_tokens": 256, "batch_frames": 1}


def with_engine(params: Params, engine: dict[str, Any], **changes: Any) -> Params:
    return changed(params, engine=engine, generation=TURNS, train=SHORT | changes)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_base(tmp_path_factory.mktemp("engine") / "base")


@pytest.fixture
def fake(base) -> Iterator[FakeVllm]:
    with serving(base, name=f"base-{lineage.folder_hash(base)}") as server:
        yield server


def graded(*args: Any, **options: Any) -> list[Trajectory]:
    """Episodes whose reward is the share of even ids, since an untaught model earns none."""
    trees = play(*args, **options)
    for tree in trees:
        frames = tree.frames.values()
        ids = [token for frame in frames for turn in frame.turns for token in turn.sampled_ids]
        if tree.void is None:
            tree.reward = sum(token % 2 == 0 for token in ids) / len(ids)
    return trees


def trained(params: Params) -> dict[str, torch.Tensor]:
    """The adapter that the stage writes."""
    with runs.stage_run("train", params) as run:
        return load_file(train.run(params, run) / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def known() -> dict[str, torch.Tensor]:
    """What `wanted` has made for an earlier test."""
    return {}


@pytest.fixture
def wanted(
    tmp_path, monkeypatch, base, server_url, server_problems, server_params, mlflow_store, known
) -> dict[str, torch.Tensor]:
    """The adapter that the own engine trains, in a folder with data and base."""
    make_folder(tmp_path, monkeypatch, base, server_url, server_problems)
    monkeypatch.setattr("agent.rollouts.engine.play", graded)
    if not known:
        known |= trained(with_engine(server_params, {}))
        shutil.rmtree(train.CHECKPOINTS)
        shutil.rmtree("models/adapter")
    return known


def require_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    assert max(float(value.abs().max()) for name, value in wanted.items() if "lora_B" in name) > 0


def test_a_server_that_dies_in_a_step_voids_episodes_which_are_played_again(
    wanted, fake, server_params
):
    fake.dies = (2, 4)  # in the first round of the first step, with all turns in flight
    require_equal(trained(with_engine(server_params, {"url": fake.url})), wanted)
    rows = pd.read_parquet("reports/train.parquet")
    assert rows["episode/replaced_voids"].tolist()[0] > 0
    assert fake.loads[0] == fake.loads[1]  # the server that was started again has it again
    assert rows["eval/reward"].notna().tolist() == [False, True]
    assert "step-2" in fake.loads[-1]  # the evaluation played the weights after the last step


def test_a_server_that_stays_away_stops_the_training_which_is_resumed(wanted, fake, server_params):
    params = with_engine(server_params, {"url": fake.url})
    load = fake.load

    def die_in_the_second_step(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(fake.loads) == 1:
            fake.dies = (len(fake.bodies) + 2, 10**6)
        return load(body)

    fake.load = die_in_the_second_step
    with pytest.raises(StageError, match=r"^train: no server of vLLM answers .*to resume"):
        trained(params)
    assert [path.name for path in train.CHECKPOINTS.glob("checkpoint-*")] == ["checkpoint-1"]
    fake.away, fake.load = 0, load
    require_equal(trained(params), wanted)
    assert [int(Path(path).name.split("-")[1]) for path in fake.loads] == [0, 1, 1, 2]
    assert len(set(fake.loads)) == 4  # the resumed run has names of its own


def test_a_server_that_keeps_its_first_weights_is_told(wanted, fake, server_params, monkeypatch):
    load = fake.load

    def keep_first(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not fake.loads:
            return load(body)
        fake.models[body["lora_name"]] = list(fake.models.values())[1]
        return 200, {}

    fake.load = keep_first
    monkeypatch.setattr(logprob_check, "ROUNDED", {"mean": 1e-3, "p99": 1e-2})
    params = with_engine(server_params, {"url": fake.url}, warmup_steps=0)
    with pytest.raises(StageError, match=r"step 2: .*\(mean .*limit 0\.001"):
        trained(params)
