"""An operator's changes to schedules survive a second deployment by the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("prefect")
ROOT = Path(__file__).parents[2]
STEPS = """
import json, sys
from datetime import timedelta
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.schedules import IntervalSchedule
from flows.services import schedules
from flows.services import processes

def told():
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name("rlm/retrain").schedules
        return sorted([str(one.slug), one.active] for one in found)

def deploy():
    with schedules.kept():
        processes.run_prefect("--no-prompt", "deploy", "--all")
    return told()

with get_client(sync_client=True) as client:
    client.create_work_pool(WorkPoolCreate(name="local", type="process"), overwrite=True)
answers = [deploy()]
with get_client(sync_client=True) as client:
    deployment = client.read_deployment_by_name("rlm/retrain")
    (weekly,) = deployment.schedules
    client.update_deployment_schedule(deployment.id, weekly.id, active=True)
    added = (IntervalSchedule(interval=timedelta(days=40)), True)
    client.create_deployment_schedules(deployment.id, [added])
answers += [told(), deploy()]
print("=>", json.dumps(answers))
"""


def test_deploying_again_keeps_what_an_operator_did_to_the_schedules(
    prefect_url: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        cwd=ROOT,
        env={
            **os.environ,
            "PREFECT_API_URL": prefect_url,
            "PREFECT_HOME": str(tmp_path),
            "PREFECT_LOGGING_LEVEL": "ERROR",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, by_hand, after = json.loads(done.stdout.split("=> ")[-1])
    assert first == [["weekly", False]]
    assert by_hand == [["None", True], ["weekly", True]]
    assert after == by_hand
