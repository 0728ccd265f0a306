"""The deployment `rlm/retrain`: fresh data, a warm start from the champion, then the whole chain.

It works in this folder, like `rlm/full`: one lock keeps two trainings apart, one DVC cache knows
both, and a base that was taught once comes back from it. What it makes is a challenger;
the chain's own rule decides whether it becomes champion. Neighbour: `flows/chain.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from env.errors import SourceError, SourceUnreachable
from env.problems import hub
from env.problems.settings import HubSettings
from flows.chain import console, through
from flows.lock import BusyError, exclusive
from flows.surroundings import settle
from tasks import config, register, tracking
from tasks.config import Params
from tasks.errors import ConfigError, StageError
from tasks.outputs import write_json

LAST = Path("reports/retrain.json")


@dataclass(frozen=True)
class Fresh:
    """What is new about the data."""

    content: str
    """The same for the same data."""
    overrides: list[str]


@flow(name="rlm", retries=0, log_prints=False)
def retrain(
    profile: str = "nano", overrides: list[str] | None = None, date: str | None = None
) -> State[Any]:
    """Train on fresh data from the champion on; a challenger is registered and judged.

    Args:
        profile: as in `rlm/full`.
        overrides: `section.key=value`, each laid over the profile.
        date: ISO date of the synthetic data, to repeat a run; the scheduled time unless given.

    Returns:
        A Prefect state: Completed, also when there is nothing new; Failed named `Gated`; or
        Cancelled when another run held the folder for longer than `retrain.wait_s`.
    """
    wanted = list(overrides or [])
    params = config.resolve(profile, wanted)
    settle(params.threads)
    try:
        with exclusive(params.retrain.wait_s):
            fresh = look(params, moment(date))
            asked = {"data": fresh.content, "profile": profile, "overrides": wanted}
            before = last()
            again = {key: before.get(key) for key in asked} == asked
            if again and before["completed"]:
                return Completed(message=f"Nothing new: {fresh.content}, as at the last retraining")
            # One that was stopped goes on from the champion of then: its own challenger may have
            # become champion meanwhile.
            start = before["start"] if again else from_champion(params)
            params = config.resolve(profile, [*wanted, *fresh.overrides, *start])
            console.print(f"Retraining on {fresh.content}, {start_in_words(params)}.")
            write_json(LAST, {**asked, "start": start, "completed": False})
            state = through(params, "retrain")
            if state.is_completed():
                write_json(LAST, {**asked, "start": start, "completed": True})
            return state
    except BusyError as busy:
        return Cancelled(message=str(busy))


def moment(date: str | None) -> datetime:
    """The date of a run: the one given, else when it was scheduled, in UTC.

    Raises:
        ConfigError: it is no date.
    """
    if date is None:
        return flow_run.scheduled_start_time or datetime.now(UTC)
    try:
        return datetime.fromisoformat(date).replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(f"date: {date!r} is no date; write it as 2026-01-31") from None


def look(params: Params, when: datetime) -> Fresh:
    """What the source holds now: a seed by date, or the content of the user's files."""
    settings = params.prepare
    if settings.source == "synthetic":
        seed = int(when.strftime(params.retrain.seed))
        return Fresh(f"synthetic data of seed {seed}", [f"prepare.synthetic.seed={seed}"])
    if settings.source == "files":
        found = [
            f"{place} {content_hash(Path(place))}"
            for place in (settings.files.path, settings.files.documents)
            if place is not None
        ]
        return Fresh(f"files {', '.join(found)}", [])
    if Path(settings.hub.name).exists():
        return Fresh(f"{settings.hub.name} {content_hash(Path(settings.hub.name))}", [])
    revision = hub_commit(settings.hub)
    return Fresh(f"{settings.hub.name} at {revision}", [f"prepare.hub.revision='{revision}'"])


def content_hash(path: Path) -> str:
    """A hash of a file, or of a folder's files and their names; `missing` where nothing is."""
    if path.is_dir():
        return tracking.folder_hash(path)
    return tracking.files_hash([path], path.parent) if path.is_file() else "missing"


def hub_commit(settings: HubSettings) -> str:
    """The commit that the data set's revision stands for now, so that DVC sees a new one.

    Raises:
        ConfigError: the data set cannot be read.
        StageError: the Hub does not answer.
    """
    try:
        return hub.commit(settings)
    except SourceUnreachable as error:
        raise StageError(f"retrain: {error}") from None
    except SourceError as error:
        raise ConfigError(f"retrain: {error}") from None


def last() -> dict[str, Any]:
    """What the last retraining was asked for, where it started, and whether it completed."""
    try:
        told = json.loads(LAST.read_text(encoding="utf-8"))
        return {key: told[key] for key in ("data", "profile", "overrides", "start", "completed")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def from_champion(params: Params) -> list[str]:
    """Settings that start from the champion; none where the profile's own start is wanted.

    Without any champion the profile's own warm start is taken: the first run of a schedule must
    bring one. A champion that is there and unreadable stops the run instead: whoever deploys it
    must hear of it, and a model taught anew would not be its successor.

    Raises:
        StageError: the champion cannot be read.
    """
    if params.retrain.start == "profile":
        return []
    champion = register.champion(params.register_.model_name)
    if champion is None:
        return []
    # Its number and its weights, not the alias: DVC sees that another champion is another base.
    return [
        "warmstart.kind=champion",
        f"warmstart.version='{champion.version}'",
        f"warmstart.weights_hash='{champion.tags['weights_hash']}'",
    ]


def start_in_words(params: Params) -> str:
    """Where the base comes from, for the terminal."""
    if params.warmstart.kind == "champion":
        return f"from {params.register_.model_name} version {params.warmstart.version}, champion"
    if params.retrain.start == "profile":
        return f"from the profile's own warm start ({params.warmstart.kind})"
    return f"there is no champion yet: from the profile's warm start ({params.warmstart.kind})"
