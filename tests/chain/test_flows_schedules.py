"""An operator's changes to schedules survive a deployment by the real command."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.xdist_group("prefect")
ROOT = Path(__file__).parents[2]


def test_deploying_again_keeps_what_an_operator_did_to_the_schedules(
    prefect_url, tmp_path, monkeypatch
):
    from prefect import get_client
    from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    from flows.services import processes, schedules

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    deployments = yaml.safe_load(schedules.FILE.read_text())["deployments"]
    (weekly,) = (schedule for one in deployments for schedule in one["schedules"])
    assert weekly["active"] is False  # so a deployment switches it off
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="local", type="process"), overwrite=True)
        client.create_deployment(
            client.create_flow_from_name("rlm"),
            "retrain",
            schedules=[
                DeploymentScheduleCreate(schedule=CronSchedule(cron="0 3 * * 1"), slug="weekly"),
                DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=40))),
            ],
        )
        with schedules.kept():
            processes.run_prefect("--no-prompt", "deploy", "--all")
        found = client.read_deployment_by_name("rlm/retrain")
    assert found.entrypoint == "flows/retrain.py:retrain"  # it was deployed
    active = {str(one.slug): one.active for one in found.schedules}
    assert active == {"weekly": True, "None": True}
