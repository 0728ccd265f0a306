"""The deployment `rlm/evaluate`: any model in the identical harness, one report, one MLflow run.

The work is done in `tasks/measure.py`. Neighbour: `flows/chain.py`, whose lock it takes, since a
training beside it would spoil the latencies.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.states import Cancelled, Completed

from flows import notices, stages
from flows.chain import clean_after_killed_run, mark, unmark
from flows.lock import BusyError, exclusive
from flows.surroundings import settle
from tasks import config, measure, tracking


@flow(name="rlm", retries=0, log_prints=False)
def evaluate(
    model: str = "models:/rlm@champion",
    base_url: str | None = None,
    profile: str = "nano",
    overrides: list[str] | None = None,
) -> State[Any]:
    """Measure one model on the test problems.

    Args:
        model: `models:/rlm/3`, `models:/rlm@champion`, a folder, or the name an endpoint knows.
        base_url: an OpenAI-compatible endpoint, ending in /v1 mostly; its key is the variable
            OPENAI_API_KEY of the worker.
        profile: as in `rlm/full`.
        overrides: `section.key=value`, each laid over the profile.

    Returns:
        A Prefect state: Completed with the headline, or Cancelled when another run held the folder
        for longer than `retrain.wait_s`.
    """
    params = config.resolve(profile, overrides or [])
    settle(params.threads)
    try:
        with exclusive(params.retrain.wait_s):
            clean_after_killed_run()
            os.environ[stages.CHAIN] = str(os.getpid())
            run = None
            try:
                with tracking.stage_run("measure", params, begun=mark) as run:
                    run.set_tags({"kind": "evaluate", "model": model})
                    notices.link_to(run.run_id, params.tracking.experiment)
                    path = measure.measure(params, run, model, base_url)
            finally:
                unmark(run)
    except BusyError as busy:
        return Cancelled(message=str(busy))
    return Completed(message=headline(path))


def headline(report: Path) -> str:
    """The report in one line."""
    told = json.loads(report.read_text(encoding="utf-8"))
    alone = told["latency"]["one_at_a_time"]
    paid = f", {told['cost']['per_episode']:.4f} per episode" if told["cost"] else ""
    return (
        f"{told['model']}: F1 {_told(told['f1_greedy'])} greedy, {_told(told['f1_sampled'])} "
        f"sampled, reward {_told(told['reward_mean'])}, p50 {_told(alone['p50_s'])} s, "
        f"p95 {_told(alone['p95_s'])} s{paid} ({told['n']} problems; {report})"
    )


def _told(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
