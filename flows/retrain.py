"""The deployment `rlm/retrain`: fresh data, a warm start from the champion, then the whole chain.

Like `rlm/full` it works in this folder. One lock separates the two, and they share one DVC cache,
which restores a base that was taught before. The result is a challenger; the chain's own rule
decides whether it becomes champion. Neighbour: `flows/chain.py`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from prefect import State, flow
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from flows import notifications
from flows.chain import announce, run_stages
from flows.runtime import BusyError, exclusive, set_environment
from tasks import config
from tasks.config.params import Params
from tasks.deployment.space_problems import GUESSABLE
from tasks.errors import ConfigError
from tasks.io import digest, read_json, replacing, write_json
from tasks.registry import champions, trained_questions, versions
from tasks.tracking import lineage
from tasks.training.fingerprint import BOOKKEEPING

LAST = Path("reports/retrain.json")
"""Request, start and completion of the last retraining."""
TRAINED = Path("data") / trained_questions.NAME
ChampionStart = dict[str, str | None] | None
"""Version and weights hash of the start; None for the profile's own warm start."""


@dataclass(frozen=True)
class FreshData:
    """The data of one retraining."""

    content: str
    """Description with date or hashes; equal for equal data."""
    overrides: list[str]
    """Settings that select this data."""


@flow(name="rlm", flow_run_name="retrain {profile}", retries=0, log_prints=False)
def retrain(
    profile: str = "nano", overrides: list[str] | None = None, date: str | None = None
) -> State[Any]:
    """Train the champion further on fresh data; register and judge the challenger.

    Args:
        profile: as in `rlm/full`.
        overrides: `section.key=value`, each applied over the profile.
        date: ISO date of the synthetic data, to repeat a run; default: the scheduled time.

    Returns:
        A Prefect state: Completed, also when there is nothing new; Failed named `Gated`; or
        Cancelled when another run held the folder for longer than `retrain.wait_s`.
    """
    with notifications.failure_told():
        wanted = list(overrides or [])
        params = config.resolve(profile, wanted)
        set_environment(params.threads)
        try:
            with exclusive(params.retrain.wait_s):
                params = config.resolve(profile, wanted)  # they may have been edited meanwhile
                fresh = fresh_data(params, run_date(date))
                request = {"data": fresh.content, "settings": settings_of(params)}
                before = read_json(LAST)
                repeat = {key: before.get(key) for key in request} == request
                if repeat and before["completed"]:
                    same = f"Nothing new: {fresh.content} and settings as at the last retraining"
                    return Completed(message=same)
                # An interrupted retraining resumes from the champion it began with, since its own
                # challenger may be the champion now.
                repeat = repeat and start_exists(before["start"], params)
                start = before["start"] if repeat else champion_to_start_from(params)
                questions = trained_questions_override(start, params)
                params = config.resolve(
                    profile, [*wanted, *fresh.overrides, *start_overrides(start), *questions]
                )
                announce(f"Retraining on {fresh.content}, {start_in_words(params, repeat)}.")
                write_json(LAST, {**request, "start": start, "completed": False})
                state = run_stages(params, "retrain")
                if state.is_completed():
                    write_json(LAST, {**request, "start": start, "completed": True})
                else:  # gated: nothing was trained, so there is nothing to resume
                    LAST.unlink()
                return state
        except BusyError as busy:
            return Cancelled(message=str(busy))


def settings_of(params: Params) -> str:
    """Digest of the settings that decide what is learnt."""
    sections = params.prepare, params.model, params.warmstart, params.gate
    train = params.train.model_dump(exclude=BOOKKEEPING)
    return digest([params.of_episodes(), train, *(section.model_dump() for section in sections)])


def run_date(date: str | None) -> datetime:
    """Date of a run: the given one, else its scheduled time, in UTC.

    Raises:
        ConfigError: the text is not an ISO date.
    """
    if date is None:
        return flow_run.scheduled_start_time or datetime.now(UTC)
    try:
        return datetime.fromisoformat(date).replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(f"date: {date!r} is not a date. Write it as 2026-01-31.") from None


def fresh_data(params: Params, when: datetime) -> FreshData:
    """The source's current data: a seed by date, or the content of files."""
    settings = params.prepare
    if settings.source == "synthetic":
        date = int(when.strftime("%Y%m%d"))
        seed = seed_of(date, settings.synthetic.seed)
        return FreshData(f"synthetic data of {date}", [f"prepare.synthetic.seed={seed}"])
    files = settings.files
    hashes = [
        f"{place} {content_hash(Path(place))}"
        for place in (files.path, files.documents, files.headings)
        if place is not None
    ]
    return FreshData(f"files {', '.join(hashes)}", [])


def seed_of(date: int, own: int) -> int:
    """The date itself, or a hash of the date and `own` if the configured seed `own` is secret.

    A secret seed protects the problems of a public Space; a date alone could be guessed.
    """
    if own < GUESSABLE:
        return date
    return GUESSABLE + int(sha256(f"{own} {date}".encode()).hexdigest()[:32], 16)


def content_hash(path: Path) -> str:
    """Hash of a file, or of the names and contents in a folder; `missing` without either."""
    if path.is_dir():
        return lineage.folder_hash(path)
    return lineage.files_hash([path], path.parent) if path.is_file() else "missing"


def champion_to_start_from(params: Params) -> ChampionStart:
    """Number and weights hash of the champion; None for the profile's own start.

    Without a champion the profile's warm start is used, so that the first scheduled run can make
    one. An unreadable champion stops the run: its users must know, and a model trained from the
    profile would not be its successor.

    Raises:
        StageError: the champion cannot be read.
    """
    if params.retrain.start == "profile":
        return None
    champion = versions.champion(params.register_.model_name)
    if champion is None:
        return None
    # The number, not the alias: so DVC sees a new champion as a new base.
    return {"version": str(champion.version), "weights_hash": champion.tags.get("weights_hash")}


def start_exists(start: ChampionStart, params: Params) -> bool:
    """Whether an interrupted retraining can resume from its start.

    Raises:
        StageError: the registry fails.
    """
    if start is None:
        return True
    return params.retrain.start == "champion" and any(
        str(version.version) == start["version"]
        and version.tags.get("weights_hash") == start["weights_hash"]
        and champions.ROLLED_BACK not in version.tags
        for version in versions.list_versions(params.register_.model_name)
    )


def start_overrides(start: ChampionStart) -> list[str]:
    """The start as settings; empty for the profile's own."""
    if start is None:
        return []
    pins = [f"warmstart.{key}='{value}'" for key, value in start.items() if value is not None]
    return ["warmstart.kind=champion", *pins]


def trained_questions_override(start: ChampionStart, params: Params) -> list[str]:
    """Setting of `prepare` that keeps the start's training questions out of the test split.

    Raises:
        StageError: the registry fails, or the version cannot be read.
    """
    if start is None or params.prepare.source == "synthetic":
        return []
    version = versions.get_version(params.register_.model_name, str(start["version"]))
    questions = versions.trained_on(version)
    if questions is None:
        return []
    with replacing(TRAINED) as path:
        shutil.copy(questions, path)
    return [f"prepare.splits.trained='{TRAINED}'"]


def start_in_words(params: Params, resumed: bool = False) -> str:
    """Origin of the base, for the terminal.

    Args:
        params: the settings in force.
        resumed: whether an interrupted retraining resumes.
    """
    if params.warmstart.kind == "champion":
        then = "the champion when it began" if resumed else "champion"
        return f"from {params.register_.model_name} version {params.warmstart.version}, {then}"
    if resumed or params.retrain.start == "profile":
        return f"from the profile's own warm start ({params.warmstart.kind})"
    return f"from the profile's warm start ({params.warmstart.kind}): no champion exists yet"
