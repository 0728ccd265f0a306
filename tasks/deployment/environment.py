"""Environment of a stage: the server that `RLM_ENV_URL` names, or the stage's own.

`deploy.target` selects a local process (`local.py`) or a container (`docker.py`) for the stage's
duration, or a permanent Space (`space.py`). `checks.py` checks a server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from env import variables
from tasks import paths
from tasks.config.params import Params
from tasks.deployment.checks import check_same, get, metadata
from tasks.deployment.local import local_server
from tasks.errors import ConfigError, StageError
from tasks.reporting import progress

ENV_URL = variables.URL


@contextmanager
def environment(params: Params) -> Iterator[str]:
    """URL of a healthy environment for the duration of the block; only a Space outlives it.

    Raises:
        ConfigError: the port is taken, a token is missing or lacks a permission, or the server
            has other settings.
        StageError: the server does not start, or the named one does not answer.
    """
    given = os.environ.get(ENV_URL)
    data = paths.PROBLEMS if any(paths.PROBLEMS.glob("*.parquet")) else None
    with ExitStack() as stack:
        if given:
            yield _given(params, given.rstrip("/"))
        elif params.deploy.target == "local":
            with progress.doing("start the environment"):
                url = stack.enter_context(local_server(params, data))
            yield url
        elif params.deploy.target == "docker":
            from tasks.deployment.docker import container

            with progress.doing("start the environment"):
                url = stack.enter_context(container(params, data))
            yield url
        else:
            from tasks.deployment.space import deployed

            access = deployed(params, data)
            stack.enter_context(variables.addressed(*access))
            yield _given(params, access.url)


def _given(params: Params, url: str) -> str:
    """The address, after the check that its server has these settings."""
    try:
        get(f"{url}/health", timeout_s=10.0)
    except OSError as error:
        raise StageError(
            f"the environment at {url} does not answer ({error}). If this run started it, run the "
            f"same command again. If {ENV_URL} names it, start it, or unset {ENV_URL} to let the "
            f"stage start a local server. A private Space needs {variables.TOKEN}."
        ) from None
    about = metadata(url)
    check_same(params, url, about)
    if about.get("splits") is not None and not variables.owner_key(url):
        raise ConfigError(
            f"{url} opens only {', '.join(about['splits'])} to strangers, in rounded figures. Set "
            f"{variables.OWNER_KEY} to its key, or deploy.target: space to let the stage find it."
        )
    return url
