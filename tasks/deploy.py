"""Stage `deploy`: start the environment, wait until it is healthy, and play one step.

Writes `reports/deployment.json`. Targets and checks of a server are in `tasks/deployment`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tasks import paths
from tasks.config.params import Params
from tasks.deployment.checks import check_problems, metadata, smoke_test
from tasks.deployment.environment import ENV_URL, environment
from tasks.io import read_json, write_json
from tasks.tracking.runs import StageRun


def run(params: Params, run: StageRun) -> Path:
    """Start or find the environment, test it, and write its description; returns the report's path.

    Raises:
        ConfigError: the port is in use, a token is missing or lacks a permission, or the server
            has other settings or problems.
        StageError: the server does not start, or the smoke test fails.
    """
    from tasks.tracking.lineage import versions

    started_by = ENV_URL if os.environ.get(ENV_URL) else "stage"  # a Space sets the variable
    with environment(params) as url:
        about = metadata(url)
        seconds = smoke_test(url)
        check_problems(url, paths.PROBLEMS)
        report = {
            "url": url,
            "target": params.deploy.target,
            # A local server that this stage started stops with the stage.
            "started_by": started_by,
            **_where(params, url),
            "sandbox": about.get("sandbox_layers", []),
            "prompt_style": about.get("prompt_style"),
            "problems": about.get("problems"),
            "problem_source": about.get("problem_source"),
            "smoke_test_s": round(seconds, 3),
            "versions": versions(),
        }
        run.set_tags(
            {
                "env_url": url,
                "env_target": params.deploy.target,
                "env_commit": str(report.get("commit")),
                "sandbox": ",".join(about.get("sandbox_layers", [])),
            }
        )
        run.log_metrics({"deploy/smoke_test_seconds": seconds})
        return write_json(paths.DEPLOYMENT, report)


def _where(params: Params, url: str) -> dict[str, Any]:
    """Name and commit of the Space that was deployed at this address; empty for other targets."""
    if params.deploy.target != "space":
        return {}
    from tasks.deployment import space

    report = read_json(space.REPORT)
    return {key: report[key] for key in ("space", "commit")} if report.get("url") == url else {}
