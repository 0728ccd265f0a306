"""The deployment `rlm/evaluate`: any model in the same harness, one report, one MLflow run.

`tasks/evaluate_model.py` does the work. The flow takes the chain's lock, because a training run at
the same time would distort the latencies.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.states import Cancelled, Completed

from env import variables
from flows import notifications
from flows.chain import clean_after_killed_run, mark, tell, unmark
from flows.runtime import BusyError, exclusive, settle
from tasks import config, evaluate_model
from tasks.reporting import progress
from tasks.tracking import runs


@flow(name="rlm", flow_run_name="evaluate {model}", retries=0, log_prints=False)
def evaluate(
    model: str = "models:/rlm@champion",
    base_url: str | None = None,
    profile: str = "nano",
    overrides: list[str] | None = None,
) -> State[Any]:
    """Measure one model on the test problems.

    Args:
        model: `models:/rlm/3`, `models:/rlm@champion`, a folder, or the name an endpoint knows.
        base_url: an OpenAI-compatible endpoint, which usually ends in /v1; the worker's variable
            OPENAI_API_KEY holds its key.
        profile: as in `rlm/full`.
        overrides: `section.key=value`, each applied over the profile.

    Returns:
        A Prefect state: Completed with the headline, or Cancelled when another run held the folder
        for longer than `retrain.wait_s`.
    """
    with notifications.failure_told():
        params = config.resolve(profile, overrides or [])
        settle(params.threads)
        try:
            with exclusive(params.retrain.wait_s):
                clean_after_killed_run()
                os.environ[variables.CHAIN] = str(os.getpid())
                run = None
                try:
                    with runs.stage_run("evaluate_model", params, title=model, begun=mark) as run:
                        run.set_tags({"kind": "evaluate", "model": model})
                        notifications.link_to(run)
                        with progress.stage("evaluate"):
                            path = evaluate_model.measure_model(params, run, model, base_url, tell)
                        notifications.log(headline(path))
                        notifications.log(f"in MLflow: {notifications.run_url(run)}")
                finally:
                    unmark(run)
        except BusyError as busy:
            return Cancelled(message=str(busy))
        return Completed(message=headline(path))


def headline(report: Path) -> str:
    """The report in one line."""
    found = json.loads(report.read_text(encoding="utf-8"))
    alone = found["latency"]["one_at_a_time"]
    paid = f", {found['cost']['per_episode']:.4f} per episode" if found["cost"] else ""
    return (
        f"{found['model']}: F1 {_text(found['f1_greedy'])} greedy, {_text(found['f1_sampled'])} "
        f"sampled, reward {_text(found['reward_mean'])}, p50 {_text(alone['p50_s'])} s, "
        f"p95 {_text(alone['p95_s'])} s{paid} ({found['n']} problems; {report})"
    )


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
