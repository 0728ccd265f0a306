"""The engine of a training: servers that the stage starts, and servers that die under it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import psutil
import pytest
import torch
from helpers.fake_vllm import FakeVllm, serving
from helpers.training_folder import make_folder
from helpers.vllm_trees import save_base
from safetensors.torch import load_file

from agent.rollouts.engine import play
from agent.rollouts.trajectory import Trajectory
from tasks import train
from tasks.config import check
from tasks.config.params import Params
from tasks.deployment.engine import engine_servers
from tasks.errors import StageError
from tasks.tracking import lineage, runs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
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
    "generation": {"max_turn_tokens": 12, "max_frame_tokens": 256, "batch_frames": 1},
}


def with_engine(params: Params, engine: dict[str, Any], **changes: Any) -> Params:
    data = params.model_dump(by_alias=True, mode="json")
    data["threads"] = 1
    data["engine"] |= {"concurrency": 4, "wait_s": 20, "timeout_s": 20, "away_s": 3} | engine
    data["train"] |= SHORT | changes
    return check(data, "test")


# Training on the stand-in.


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_base(tmp_path_factory.mktemp("engine") / "base")


@pytest.fixture
def fake(base) -> Iterator[FakeVllm]:
    with serving(base, name=f"base-{lineage.folder_hash(base)}") as server:
        yield server


@pytest.fixture
def project(tmp_path, monkeypatch, base, server_url, server_problems, mlflow_store: Path) -> Path:
    """A folder with data and base, and the session's server as its environment."""
    make_folder(tmp_path, monkeypatch, base, server_url, server_problems)
    monkeypatch.setattr("agent.rollouts.engine.play", graded)
    return tmp_path


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


def require_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    assert max(float(value.abs().max()) for name, value in wanted.items() if "lora_B" in name) > 0


def test_a_server_that_dies_in_a_step_voids_episodes_which_are_played_again(
    project, fake, server_params
):
    wanted = trained(with_engine(server_params, {"kind": "own"}))
    shutil.rmtree(train.CHECKPOINTS)
    shutil.rmtree("models/adapter")
    # Dies in the first round of the first step; the turns in flight and a look at it get no answer.
    fake.dies = (2, 5)
    require_equal(trained(with_engine(server_params, {"kind": "vllm", "urls": [fake.url]})), wanted)
    rows = pd.read_parquet("reports/train.parquet")
    assert rows["episode/replaced_voids"].tolist()[0] > 0
    assert fake.loads[0] == fake.loads[1]  # the server that was started again has it again
    assert rows["eval/reward"].notna().tolist() == [False, True]
    assert "step-2" in fake.loads[-1]  # the evaluation played the weights after the last step


def test_a_server_that_stays_away_stops_the_training_which_is_resumed(project, fake, server_params):
    wanted = trained(with_engine(server_params, {"kind": "own"}))
    shutil.rmtree(train.CHECKPOINTS)
    shutil.rmtree("models/adapter")
    params = with_engine(server_params, {"kind": "vllm", "urls": [fake.url], "away_s": 0.5})
    load = fake.load

    def die_in_the_second_step(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(fake.loads) == 1:
            fake.dies = (len(fake.bodies) + 2, 10**6)
        return load(body)

    fake.load = die_in_the_second_step
    with pytest.raises(StageError, match=r"^train: no engine has answered for 0\.5 s .*to resume"):
        trained(params)
    assert [path.name for path in train.CHECKPOINTS.glob("checkpoint-*")] == ["checkpoint-1"]
    fake.away, fake.load = 0, load
    require_equal(trained(params), wanted)
    assert [int(Path(path).name.split("-")[1]) for path in fake.loads] == [0, 1, 1, 2]
    assert len(set(fake.loads)) == 4  # the resumed run has names of its own


# The stage's own server.

PYTHON = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
with open({noted!r}, "w") as file:
    json.dump([os.getpid(), sys.argv[1:], dict(os.environ)], file)
print("Loading weights", flush=True)
if {mode!r} == "fails":
    print("RuntimeError: no memory for the cache", flush=True)
    sys.exit(3)
if {mode!r} == "hangs":
    time.sleep(600)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        if {mode!r} == "dies" and self.path == "/die":
            print("CUDA error: an illegal memory access", flush=True)
            os._exit(1)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


def vllm_python(folder: Path, mode: str) -> dict[str, Any]:
    """Settings that name a Python which, instead of vLLM, only answers `/health`."""
    path = folder / "python"
    noted = str(folder / "noted.json")
    path.write_text(PYTHON.format(python=sys.executable, noted=noted, mode=mode))
    path.chmod(0o755)
    return {"kind": "vllm", "python": str(path)}


def started(folder: Path) -> tuple[int, list[str], dict[str, str]]:
    pid, arguments, environment = json.loads((folder / "noted.json").read_text())
    return pid, arguments, environment


def require_ended(pid: int) -> None:
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_stage_starts_a_server_and_ends_it(tmp_path, monkeypatch, base, server_params):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    params = with_engine(server_params, vllm_python(tmp_path, "serves"))
    lines: list[str] = []
    with engine_servers(params, base, "0123", lines.append) as engine:
        assert engine is not None
        assert httpx.get(f"{engine.urls[0]}/health").is_success
        pid, arguments, environment = started(tmp_path)
        assert psutil.pid_exists(pid)
    require_ended(pid)
    assert arguments[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", str(base)]
    assert arguments[arguments.index("--dtype") + 1] == "float32"
    assert arguments[arguments.index("--served-model-name") + 1] == engine.model == "base-0123"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == "1"
    assert "PYTHONPATH" not in environment
    assert lines == [f"engine at {engine.urls[0]}, log in {next(tmp_path.glob('logs/engine-*'))}"]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("fails", r"ended with code 3\. .*engine\.kv_gb.*\n.*\nRuntimeError: no memory"),
        ("hangs", r"not healthy after 1 s\. Raise engine\.wait_s.*\nLoading weights"),
    ],
)
def test_a_server_that_does_not_start_shows_the_end_of_its_log(
    tmp_path, monkeypatch, base, server_params, mode, message
):
    monkeypatch.chdir(tmp_path)
    wait_s = 20 if mode == "fails" else 1
    params = with_engine(server_params, vllm_python(tmp_path, mode) | {"wait_s": wait_s})
    with (
        pytest.raises(StageError, match=message),
        engine_servers(params, base, "0123", lambda _: None),
    ):
        pass
    require_ended(started(tmp_path)[0])


def test_a_server_ends_with_a_stage_that_is_killed(tmp_path, base, server_params):
    vllm_python(tmp_path, "serves")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from tasks.config import resolve\n"
        "from tasks.deployment.engine import engine_servers\n"
        f"sets = ['engine.kind=vllm', 'engine.python={tmp_path}/python']\n"
        f"with engine_servers(resolve(overrides=sets), Path({str(base)!r}), '0', print):\n"
        "    time.sleep(600)\n"
    )
    # In this folder's root, which has params.yaml; its log goes to logs/.
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as stage:
        assert stage.stdout is not None
        line = stage.stdout.readline()
        assert line.startswith("engine at "), line
        pid = started(tmp_path)[0]
        stage.send_signal(signal.SIGKILL)
    require_ended(pid)
    Path(line.split()[-1]).unlink()
