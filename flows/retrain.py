"""The deployment `rlm/retrain`: fresh data, a warm start from the champion, then the whole chain.

It works in this folder, like `rlm/full`: one lock keeps two trainings apart, one DVC cache knows
both, and a base that was taught once comes back from it. What it makes is a challenger;
the chain's own rule decides whether it becomes champion. Neighbour: `flows/chain.py`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
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
from tasks import champions, config, lineage, register, trained
from tasks.config import Params
from tasks.errors import ConfigError, StageError
from tasks.outputs import replacing, write_json
from tasks.space_problems import GUESSABLE

LAST = Path("reports/retrain.json")
TRAINED = Path("data") / trained.NAME
Start = dict[str, str | None] | None
"""Version and weights that a retraining goes on from; None: those that the profile brings."""


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
            again = again and still_there(before["start"], params)
            start = before["start"] if again else champion_to_start_from(params)
            known = trained_before(start, params)
            params = config.resolve(profile, [*wanted, *fresh.overrides, *pinned(start), *known])
            console.print(f"Retraining on {fresh.content}, {start_in_words(params, again)}.")
            write_json(LAST, {**asked, "start": start, "completed": False})
            state = through(params, "retrain")
            if state.is_completed():
                write_json(LAST, {**asked, "start": start, "completed": True})
            else:  # gated: nothing was taught that could be gone on with
                LAST.unlink()
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
        date = int(when.strftime(params.retrain.seed))
        seed = seed_of(date, settings.synthetic.seed)
        return Fresh(f"synthetic data of {date}", [f"prepare.synthetic.seed={seed}"])
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


def seed_of(date: int, own: int) -> int:
    """The date itself, unless the settings' own seed is a secret: then one that follows from both.

    A public Space plays problems that nobody else can generate; a date could be tried out.
    """
    if own < GUESSABLE:
        return date
    return GUESSABLE + int(sha256(f"{own} {date}".encode()).hexdigest()[:14], 16)


def content_hash(path: Path) -> str:
    """A hash of a file, or of a folder's files and their names; `missing` where nothing is."""
    if path.is_dir():
        return lineage.folder_hash(path)
    return lineage.files_hash([path], path.parent) if path.is_file() else "missing"


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


def champion_to_start_from(params: Params) -> Start:
    """Number and weights of the champion; None where the profile's own start is wanted.

    Without any champion the profile's own warm start is taken: the first run of a schedule must
    bring one. A champion that is there and unreadable stops the run instead: whoever deploys it
    must hear of it, and a model taught anew would not be its successor.

    Raises:
        StageError: the champion cannot be read.
    """
    if params.retrain.start == "profile":
        return None
    champion = register.champion(params.register_.model_name)
    if champion is None:
        return None
    # Its number, not the alias: DVC sees that another champion is another base.
    return {"version": str(champion.version), "weights_hash": champion.tags.get("weights_hash")}


def still_there(start: Start, params: Params) -> bool:
    """Whether a retraining can go on from where it started.

    Raises:
        StageError: the registry fails.
    """
    if start is None:
        return True
    return params.retrain.start == "champion" and any(
        str(version.version) == start["version"]
        and version.tags.get("weights_hash") == start["weights_hash"]
        and champions.ROLLED_BACK not in version.tags
        for version in register.versions(params.register_.model_name)
    )


def pinned(start: Start) -> list[str]:
    """The start as settings."""
    if start is None:
        return []
    told = [f"warmstart.{key}='{value}'" for key, value in start.items() if value is not None]
    return ["warmstart.kind=champion", *told]


def trained_before(start: Start, params: Params) -> list[str]:
    """What the start was trained on, as a setting of `prepare`: it must not be tested now.

    Raises:
        StageError: the registry fails, or the version cannot be read.
    """
    if start is None or params.prepare.source == "synthetic":
        return []
    version = register.version(params.register_.model_name, str(start["version"]))
    questions = register.trained_on(version)
    if questions is None:
        return []
    with replacing(TRAINED) as path:
        shutil.copy(questions, path)
    return [f"prepare.splits.trained='{TRAINED}'"]


def start_in_words(params: Params, again: bool = False) -> str:
    """Where the base comes from, for the terminal.

    Args:
        params: the settings in force.
        again: of a retraining that was stopped, and goes on.
    """
    if params.warmstart.kind == "champion":
        then = "the champion when it began" if again else "champion"
        return f"from {params.register_.model_name} version {params.warmstart.version}, {then}"
    if again or params.retrain.start == "profile":
        return f"from the profile's own warm start ({params.warmstart.kind})"
    return f"there is no champion yet: from the profile's warm start ({params.warmstart.kind})"
