"""Stage `deploy`: have the environment run, wait for its health, play a step over the wire.

Other stages use `environment(params)`: the server that `RLM_ENV_URL` names, or what
`deploy.target` asks for: a local process or a container for their own duration, or a Space that
stays. Writes `reports/deployment.json`. Neighbours: `local_server.py`, `container.py` and
`space.py` are the targets, `answers.py` asks a server how it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from env import access
from tasks.answers import check_problems, check_same, get, metadata, smoke_test
from tasks.config import Params
from tasks.errors import StageError
from tasks.local_server import local_server
from tasks.outputs import write_json

if TYPE_CHECKING:
    from tasks.tracking import StageRun

__all__ = ["ENV_URL", "environment", "local_server", "run"]

ENV_URL = access.URL
DATA = Path("data/problems")
REPORT = Path("reports/deployment.json")


def run(params: Params, run: StageRun) -> Path:
    """Start (or find) the environment, try it, and write down what it is.

    Raises:
        ConfigError: the port is taken, a token is missing or may not do it, or what runs there
            has other settings or problems.
        StageError: the server does not start, or the smoke test fails.
    """
    from tasks.lineage import versions

    given = bool(os.environ.get(ENV_URL))
    with environment(params) as url:
        about = metadata(url)
        seconds = smoke_test(url)
        check_problems(url, DATA)
        report = {
            "url": url,
            "target": params.deploy.target,
            # A local server that this stage started ends with it.
            "started_by": ENV_URL if given else "stage",
            **_where(params, url),
            "sandbox": about.get("sandbox_layers", []),
            "sandbox_backend": about.get("sandbox_backend"),
            "sandbox_preload": about.get("sandbox_preload", []),
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
                "sandbox_backend": str(about.get("sandbox_backend")),
            }
        )
        run.log_metrics({"deploy/smoke_test_seconds": seconds})
        return write_json(REPORT, report)


@contextmanager
def environment(params: Params) -> Iterator[str]:
    """URL of a healthy environment, of this process's own for as long as the block lasts.

    Only a Space outlives the block.

    Raises:
        ConfigError: the port is taken, a token is missing or may not do it, or what runs there
            has other settings.
        StageError: the server does not start, or the one that is named does not answer.
    """
    given = os.environ.get(ENV_URL)
    data = DATA if any(DATA.glob("*.parquet")) else None
    with ExitStack() as stack:
        if given:
            yield _given(params, given.rstrip("/"))
        elif params.deploy.target == "local":
            yield stack.enter_context(local_server(params, data))
        elif params.deploy.target == "docker":
            from tasks.container import container

            yield stack.enter_context(container(params, data))
        else:
            from tasks.space import deployed

            url, token = deployed(params, data)
            stack.enter_context(access.addressed(url, token))
            yield _given(params, url)


def _given(params: Params, url: str) -> str:
    """The address, once what answers there plays by these settings."""
    try:
        get(f"{url}/health", timeout_s=10.0)
    except OSError as error:
        raise StageError(
            f"the environment at {url} does not answer ({error}); if this run started it, run the "
            f"same command again; if {ENV_URL} names it, start it, or unset that to let the stage "
            f"start a local one; a private Space opens with {access.TOKEN}"
        ) from None
    check_same(params, url, metadata(url))
    return url


def _where(params: Params, url: str) -> dict[str, Any]:
    """What the last deployment to a Space wrote down, if it is this one."""
    if params.deploy.target != "space":
        return {}
    from tasks.space import REPORT as written

    try:
        told = json.loads(written.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: told[key] for key in ("space", "commit")} if told.get("url") == url else {}
