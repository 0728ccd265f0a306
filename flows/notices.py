"""What Prefect shows and tells: artifacts on the run's page, the event of a promotion.

None of it decides anything, so a Prefect server that is gone costs a warning and never the run.
Neighbours: `flows/chain.py` says when, `flows/automations.py` what the server does with events.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from flows import services
from tasks import champions, register, tracking
from tasks.errors import StageError

PROMOTED = "rlm.promoted"
"""The event of a new champion; automations match it."""
PLOTS = Path("plots")
EVALUATION = Path("reports/evaluation.json")

logger = logging.getLogger(__name__)


@contextmanager
def unimportant(what: str) -> Iterator[None]:
    """Let the run go on when something that is only shown cannot be."""
    import httpx
    from prefect.exceptions import PrefectException

    try:
        yield
    except (httpx.HTTPError, PrefectException, StageError, OSError, RuntimeError) as error:
        logger.warning(
            "Prefect is not told %s (%s); the run goes on", what, error or type(error).__name__
        )


class Progress:
    """The bar of a run on Prefect's page."""

    def __init__(self) -> None:
        from prefect.artifacts import create_progress_artifact

        self._artifact: Any = None
        with unimportant("the progress"):
            self._artifact = create_progress_artifact(
                0.0, key="rlm-progress", description="Stages of the chain"
            )

    def advance(self, share: float, name: str) -> None:
        """Move it to a share of the stages, in [0, 1]."""
        from prefect.artifacts import update_progress_artifact

        artifact, self._artifact = self._artifact, None
        if artifact is not None:
            with unimportant("the progress"):
                update_progress_artifact(artifact, 100.0 * share, description=f"after {name}")
                self._artifact = artifact  # once refused, it is not tried again


def link_to(run_id: str, experiment: str) -> None:
    """The MLflow run of this flow run, as a link on its page."""
    from prefect.artifacts import create_link_artifact

    with unimportant("the link to MLflow"):
        create_link_artifact(
            run_url(run_id, experiment), key="rlm-mlflow", link_text="This run in MLflow"
        )


def run_url(run_id: str, experiment: str) -> str:
    """Where a run is looked at: the tracking server, or the one that `make up` starts."""
    uri = tracking.shown_uri()
    page = uri.rstrip("/") if uri.startswith("http") else services.MLFLOW
    return f"{page}/#/experiments/{tracking.experiment_id(experiment)}/runs/{run_id}"


def result(markdown: str) -> None:
    """What a run brought: the text, before and after as a table, the figures as images."""
    from prefect.artifacts import (
        create_image_artifact,
        create_markdown_artifact,
        create_table_artifact,
    )

    with unimportant("the result"):
        create_markdown_artifact(markdown, key="rlm-result", description="What the run brought")
        if rows := _before_and_after():
            create_table_artifact(rows, key="rlm-evaluation", description="Before and after")
        for picture in sorted(PLOTS.glob("*.png")):
            # The picture itself: Prefect stores addresses, and the report's folder has none.
            data = base64.b64encode(picture.read_bytes()).decode()
            key = f"rlm-{picture.stem.replace('_', '-')}"
            create_image_artifact(f"data:image/png;base64,{data}", key=key)


def _before_and_after() -> list[dict[str, Any]]:
    try:
        told = json.loads(EVALUATION.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = ("reward", "primary_objective", "f1_greedy", "f1_sampled")
    return [
        {
            "score": name,
            "mode": told[name]["mode"],
            **{key: round(told[name][key], 3) for key in ("before", "after", "difference")},
            "ci95": " to ".join(f"{bound:+.3f}" for bound in told[name]["ci95"]),
        }
        for name in names
        if name in told
    ]


def promotion(name: str) -> None:
    """Emit the event `rlm.promoted` if nobody was told of the promotion that made the champion.

    It may be of an earlier run, which was killed or found no Prefect server.

    Args:
        name: the registered model's.
    """
    from prefect import get_client
    from prefect.events import Event
    from prefect.settings import PREFECT_API_URL

    with unimportant("the promotion"):
        champion = register.champion(name)
        if champion is None or not champions.is_news(champion):
            return
        url = PREFECT_API_URL.value()
        # Without one the client would start a server of its own, which nobody hears either.
        if not url or services.for_one_run(url) or not services.answers(f"{url}/health"):
            return
        version = str(champion.version)
        event = Event.model_validate(
            {
                "event": PROMOTED,
                "resource": {
                    "prefect.resource.id": f"rlm.model.{name}",
                    "prefect.resource.name": name,
                    "version": version,
                },
                "payload": {"version": version, "reason": champion.tags["promotion.reason"]},
            }
        )
        # Not `emit_event`: what it puts into its queue may be lost, and this is told once.
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event.model_dump(mode="json")])
        champions.announced(champion)


def crashed(flow_run: str | None) -> None:
    """Let a run whose process was killed end as Crashed: nobody else tells the server.

    Args:
        flow_run: its id; None where it was not written down.
    """
    if not flow_run:
        return
    from prefect import get_client
    from prefect.states import Crashed

    with unimportant("the end of the killed run"), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run)).state
        if state is not None and not state.is_final():
            client.set_flow_run_state(UUID(flow_run), Crashed(message="its process was killed"))
