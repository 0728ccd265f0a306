"""An operator's changes to schedules survive a second deployment by the real command."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("prefect")
ROOT = Path(__file__).parents[2]


def test_deploying_again_keeps_what_an_operator_did_to_the_schedules(
    prefect_url, tmp_path, monkeypatch
):
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.client.schemas.schedules import IntervalSchedule

    from flows.services import processes, schedules

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))

    def found() -> list[tuple[str, bool]]:
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name("rlm/retrain")
            return sorted((str(one.slug), one.active) for one in deployment.schedules)

    def deploy() -> None:
        with schedules.kept():
            processes.run_prefect("--no-prompt", "deploy", "--all")

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="local", type="process"), overwrite=True)
    deploy()
    assert found() == [("weekly", False)]
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("rlm/retrain")
        (weekly,) = deployment.schedules
        client.update_deployment_schedule(deployment.id, weekly.id, active=True)
        added = (IntervalSchedule(interval=timedelta(days=40)), True)
        client.create_deployment_schedules(deployment.id, [added])
    by_hand = [("None", True), ("weekly", True)]
    assert found() == by_hand
    deploy()
    assert found() == by_hand
