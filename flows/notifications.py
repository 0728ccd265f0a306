"""Artifacts and logs on a run's Prefect page.

No decision depends on them, so a lost Prefect server causes a warning and never ends the run.
`flows/chain.py` calls this module.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from flows.services import processes
from tasks import paths
from tasks.errors import PipelineError, StageError
from tasks.tracking import runs
from tasks.tracking.runs import StageRun

logger = logging.getLogger(__name__)


@contextmanager
def optional(what: str) -> Iterator[None]:
    """Turn errors of an artifact or event into a warning, so that the run continues."""
    import httpx
    from prefect.exceptions import PrefectException

    try:
        yield
    except (httpx.HTTPError, PrefectException, StageError, OSError, RuntimeError) as error:
        logger.warning(
            "could not send %s to Prefect (%s); the run continues",
            what,
            error or type(error).__name__,
        )


def log(line: str) -> None:
    """Add a line to the logs of this flow run, which `--watch` prints; nothing outside of one."""
    from prefect import get_run_logger
    from prefect.exceptions import MissingContextError

    with suppress(MissingContextError):
        get_run_logger().info(line)


def failed(reason: object) -> None:
    """Add a reason to these logs."""
    log(f"failed: {reason}")
    flush()


def flush() -> None:
    """Send the logs so far; else `--watch` would end before they arrive."""
    from prefect.logging.handlers import APILogHandler

    with optional("the last lines"):
        APILogHandler().flush()


@contextmanager
def failure_told() -> Iterator[None]:
    """Add the reason to the logs of this flow run if the block fails."""
    try:
        yield
    except PipelineError as error:
        failed(error)
        raise


def link_to(run: StageRun) -> None:
    """Link this flow run's page to its MLflow run."""
    from prefect.artifacts import create_link_artifact

    with optional("the link to MLflow"):
        create_link_artifact(run_url(run), key="rlm-mlflow", link_text="This run in MLflow")


def run_url(run: StageRun) -> str:
    """Address of a run's page, on the tracking server or on the one that `make up` starts."""
    uri = runs.shown_uri()
    page = uri.rstrip("/") if uri.startswith("http") else processes.MLFLOW
    return f"{page}/#/experiments/{run.experiment_id}/runs/{run.run_id}"


def result(markdown: str) -> None:
    """Show a run's result: the text, and the plots as images."""
    from prefect.artifacts import create_image_artifact, create_markdown_artifact

    with optional("the result"):
        create_markdown_artifact(markdown, key="rlm-result", description="Result of the run")
        for picture in sorted(paths.PLOTS.glob("*.png")):
            # As a data URL: Prefect stores addresses, and the local file does not have one.
            data = base64.b64encode(picture.read_bytes()).decode()
            key = f"rlm-{picture.stem.replace('_', '-')}"
            create_image_artifact(f"data:image/png;base64,{data}", key=key)


def crashed(flow_run: str | None) -> None:
    """Set the state of a run whose process was killed to Crashed; nothing else reports it.

    Args:
        flow_run: id of the flow run; None if it was not recorded.
    """
    if not flow_run:
        return
    from prefect import get_client
    from prefect.states import Crashed

    with optional("the end of the killed run"), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run)).state
        if state is not None and not state.is_final():
            client.set_flow_run_state(UUID(flow_run), Crashed(message="its process was killed"))
