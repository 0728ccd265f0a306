"""The stage on a real server with an untaught model: what it writes, resumes, and refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from helpers.chain_runs import ROOT, copy_project
from helpers.chain_runs import runs as recorded
from helpers.changed import changed, write_params
from helpers.problem_files import write_problems
from helpers.untaught import untaught

from agent.nano.sizes import NanoModelSettings, NanoSettings
from agent.nano.teaching import save
from agent.rollouts.engine import play
from agent.rollouts.trajectory import Trajectory
from agent.training import checkpoints
from tasks import paths, train
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking import runs
from tasks.training import fingerprint

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("stages"),  # which import TRL once
]
SHORT = {"steps": 3, "problems_per_step": 2, "group_size": 2, "save_every": 1}
COLUMNS = {
    "reward": "overall primary process format efficiency",
    "episode": "success_rate timeout_rate void_rate turns sub_calls depth tokens replaced_voids",
    "train": "loss grad_norm zero_variance_groups rows rows_cut tokens_per_second resampled_groups "
    "extra_episodes too_hard_groups too_easy_groups",
    "curriculum": "metric level",
}
"""Columns of each step, by area."""
TURNS = {"max_turn_tokens": 12, "max_frame_tokens": 256, "batch_frames": 8}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """An untaught nano model."""
    settings = NanoSettings(model=NanoModelSettings(hidden=64, layers=2, heads=2, mlp=64))
    folder = tmp_path_factory.mktemp("untaught") / "base"
    save(untaught(settings), folder)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch, base, server_url, server_problems, mlflow_store: Path) -> Path:
    """A folder with data and base, and the session's server as its environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLM_ENV_URL", server_url)
    write_problems(paths.TRAIN, map(server_problems.get, server_problems.ids("train")))
    (tmp_path / "models").mkdir()
    (tmp_path / paths.BASE).symlink_to(base)
    return tmp_path


def with_train(params: Params, **changes) -> Params:
    return changed(params, generation=TURNS, train=SHORT | changes)


def marks_of(params: Params) -> dict[str, str]:
    return fingerprint.fingerprint(params, paths.BASE, paths.TRAIN)


def run_stage(params: Params) -> Path:
    with runs.stage_run("train", params) as run:
        return train.run(params, run)


def start_of(params: Params) -> str:
    """Tag `start` of the newest run of the stage."""
    return str(recorded("train")[0].data.tags["start"])


def test_the_stage_writes_adapter_and_rows_and_again_the_same(project, server_params, monkeypatch):
    monkeypatch.setattr(train, "TABLE_EVERY", 2)
    params = with_train(server_params)
    assert run_stage(params) == paths.TRAINED
    assert start_of(params) == "no checkpoint: starting clean"
    for name in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json"):
        assert (project / "models/adapter" / name).is_file()

    rows = pd.read_parquet("reports/train.parquet")
    assert list(rows["step"]) == [1, 2, 3]
    assert set(rows["level"]) == {"easy"}
    for area, names in COLUMNS.items():
        for name in names.split():
            assert rows[f"{area}/{name}"].notna().all(), name
    assert rows["train/logprob_mismatch_max"][:2].between(0, 1e-4).all()

    lines = Path("reports/raw_episodes.jsonl").read_text(encoding="utf-8").splitlines()
    episodes = [json.loads(line) for line in lines]
    assert {episode["step"] for episode in episodes} == {1, 2}
    assert all(3 <= sum(e["step"] == step for e in episodes) <= 5 for step in (1, 2))

    metrics = recorded("train")[0].data.metrics
    assert {"reward/overall", "episode/void_rate", "train/loss"} <= set(metrics)

    weights = (project / "models/adapter/adapter_model.safetensors").read_bytes()
    shutil.rmtree("models/adapter")  # as DVC does before it runs a stage
    run_stage(params)
    assert start_of(params).startswith("resuming after step 3 from ")
    assert (project / "models/adapter/adapter_model.safetensors").read_bytes() == weights
    pd.testing.assert_frame_equal(pd.read_parquet("reports/train.parquet"), rows)

    run_stage(with_train(server_params, steps=1))
    (kept,) = Path("models").glob("checkpoints.*")
    assert start_of(params) == (
        f"settings of train changed: starting clean. The earlier checkpoints are kept in {kept}."
    )
    assert list(checkpoints.steps(kept)) == [2, 3]
    assert list(checkpoints.steps(train.CHECKPOINTS)) == [1]
    assert list(pd.read_parquet("reports/train.parquet")["step"]) == [1]


def test_two_processes_play_and_train_one_run(project, server_params, monkeypatch, warm):
    monkeypatch.setattr(sys, "executable", warm)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_stage(with_train(server_params, steps=2, processes=2)) == paths.TRAINED
    assert (project / "models/adapter/adapter_model.safetensors").is_file()
    assert list(checkpoints.steps(train.CHECKPOINTS)) == [1, 2]
    rows = pd.read_parquet("reports/train.parquet")
    assert list(rows["step"]) == [1, 2]
    assert (rows["episode/void_rate"] == 0).all()
    assert rows["train/logprob_mismatch_max"].between(0, 1e-4).all()
    assert {"reward/overall", "train/loss"} <= set(recorded("train")[0].data.metrics)


def test_a_resumed_run_has_the_rows_of_an_uninterrupted_one(project, server_params, monkeypatch):
    def play_rewarded(*arguments, **named) -> list[Trajectory]:
        """Rewards depend on the tokens, so that they differ."""
        played = play(*arguments, **named)
        for tree in played:
            turns = [turn for frame in tree.frames.values() for turn in frame.turns]
            score = sum(sum(turn.sampled_ids) for turn in turns) % 97 / 97
            tree.reward = tree.components["primary_objective"] = score
        return played

    monkeypatch.setattr("agent.rollouts.engine.play", play_rewarded)
    params = with_train(server_params, steps=2)
    run_stage(params)
    whole = pd.read_parquet("reports/train.parquet")
    assert (whole["train/grad_norm"] > 0).all()  # it learnt, so a difference would show
    shutil.rmtree(train.CHECKPOINTS / "checkpoint-2")
    run_stage(params)
    assert start_of(params).startswith("resuming after step 1 from ")
    rows = pd.read_parquet("reports/train.parquet")
    clocks = [name for name in whole if name.endswith(("_seconds", "_per_second"))]
    pd.testing.assert_frame_equal(rows.drop(columns=clocks), whole.drop(columns=clocks))


def test_a_killed_run_resumes_and_says_so(project, server_params, warm):
    params = with_train(server_params, steps=15)
    write_params(params)
    command = [warm, "-m", "flows.pipeline", "train"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until = time.monotonic() + 120
            while not checkpoints.steps(train.CHECKPOINTS):
                assert time.monotonic() < until
                assert process.poll() is None
                time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()  # until all that held its output are gone
    reached = max(checkpoints.steps(train.CHECKPOINTS))
    assert reached < 15
    assert not paths.TRAINED.exists()

    # The shorter way to the end; what decides the weights is unchanged.
    run_stage(with_train(server_params, steps=15, save_every=100))
    assert start_of(params).startswith(f"resuming after step {reached} from ")
    assert list(pd.read_parquet("reports/train.parquet")["step"]) == list(range(1, 16))


def test_changed_settings_or_base_start_clean_and_bookkeeping_does_not(project, server_params):
    params = with_train(server_params)
    marks = marks_of(params)
    folder = train.CHECKPOINTS / "checkpoint-2"
    folder.mkdir(parents=True)
    (folder / checkpoints.STATE).write_text(json.dumps({"step": 2, "fingerprint": marks}))

    def reason(of: Params) -> str:
        return checkpoints.choose(train.CHECKPOINTS, marks_of(of)).reason

    assert reason(params).startswith("resuming after step 2")
    assert reason(with_train(server_params, save_every=2)).startswith("resuming after step 2")
    # What the message about a full memory says to lower.
    smaller = changed(params, generation={"batch_frames": 4}, env={"max_sessions": 3})
    assert reason(smaller).startswith("resuming after step 2")
    rewarded = changed(params, rewards={"read_chars": 90})
    assert reason(rewarded) == "settings of rewards changed: starting clean"
    base = paths.BASE.resolve()
    paths.BASE.unlink()
    paths.BASE.mkdir()
    (paths.BASE / "config.json").write_bytes((base / "config.json").read_bytes() + b" ")
    assert reason(params) == "base model changed: starting clean"


def test_changed_code_starts_clean(project, server_params, monkeypatch, tmp_path):
    params = with_train(server_params)
    before = marks_of(params)
    copied = tmp_path / "copied"
    copy_project(copied, ["agent", "env", "rewards", "tasks"])
    monkeypatch.setattr(fingerprint, "ROOT", copied)
    for path in set(copied.rglob("*.py")).difference(fingerprint.code_files()):
        with path.open("a") as file:
            file.write('"""Changed."""\n')
    assert marks_of(params) == before
    with (copied / "rewards/primary.py").open("a") as file:
        file.write("# changed\n")
    changed = marks_of(params)
    assert {name for name in before if before[name] != changed[name]} == {"code"}


def test_an_adapter_of_other_settings_is_refused(project, base, server_params, monkeypatch):
    monkeypatch.setattr(train, "environment", None)  # before any episode
    (project / "models/base").unlink()  # a link to the base of all tests
    shutil.copytree(base, project / "models/base")
    adapter = project / "models/base/adapter"
    adapter.mkdir()
    config = {"r": 16, "lora_alpha": 16, "target_modules": ["q_proj"]}
    for own, lora, told in (
        ({}, {"r": 8}, r"its r is 16, but the training's is 8\. Run the stage war"),
        ({"lora_alpha": 32}, {}, r"its alpha is 32, but the training's is 16"),
        ({}, {"targets": ["v_proj"]}, r"'q_proj'\], but the training's is \['v_proj'\]"),
    ):
        (adapter / "adapter_config.json").write_text(json.dumps(config | own))
        with pytest.raises(StageError, match=told):
            run_stage(with_train(server_params, lora={"targets": ["q_proj"]} | lora))
