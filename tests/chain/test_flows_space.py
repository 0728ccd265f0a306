"""The whole chain with its environment on a Space: nothing of it plays anywhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.chain_runs import copy_project
from helpers.space_hub import TOKEN, serve_spaces
from test_flows_pipeline import CODE, FILES

from env import variables

SETTINGS = ("deploy.target=space", "prepare.synthetic.seed=8675309")


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_the_chain_trains_and_evaluates_against_a_private_space(tmp_path: Path) -> None:
    project = tmp_path / "project"
    more = (".dockerignore", "Dockerfile", "openenv.yaml", "prefect.toml")
    copy_project(project, [*CODE, *FILES, *more])
    with serve_spaces(tmp_path / "hub") as hub:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "flows.pipeline", "run", "--profile", "quick"),
                *(word for text in SETTINGS for word in ("--set", text)),
            ],
            cwd=project,
            env={
                **{name: value for name, value in os.environ.items() if "RLM_" not in name},
                "PYTHONPATH": str(project),
                "HF_ENDPOINT": hub.url,
                "HF_TOKEN": TOKEN,
                "HF_HOME": str(tmp_path / "home"),
                "PREFECT_HOME": str(tmp_path / "prefect"),
            },
            capture_output=True,
            text=True,
        )
        told = done.stdout + done.stderr
        assert done.returncode == 0, told[:3000] + told[-2000:]
        space = hub.repos["space", "ada/rlm"]
    deployed = json.loads((project / "reports/deployment.json").read_text())
    assert (deployed["url"], deployed["commit"]) == (space.host, space.sha)
    assert len(space.commits) == 2
    assert set(space.secrets) == {variables.SEED, variables.OWNER_KEY}
    assert space.secrets[variables.SEED] == "8675309"
    rewards = pd.read_parquet(project / "reports/episodes.parquet")["reward"].dropna()
    assert (rewards != rewards.round(2)).any()  # the owner's figures are exact
    assert not list((project / "logs").glob("env-*"))
    files = [path for path in project.rglob("*") if path.is_file()]
    for secret in (TOKEN, space.secrets[variables.OWNER_KEY]):
        assert secret not in told
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
