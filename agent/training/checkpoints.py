"""Checkpoints that survive a kill at any moment: written, found, pruned and set aside.

A checkpoint is a folder `checkpoint-N`. It is written under another name and renamed when complete,
so every folder of that name is complete. The trainer owns its content; this module reads only
`state.json`, the caller's part. Checkpoints that a run cannot continue are renamed, never deleted.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.errors import CheckpointError, disk_is_full

STATE = "state.json"
NOTHING = "no checkpoint: starting clean"
"""Reason of a run that finds none, of any kind."""
WRITING = ".writing"


@dataclass(frozen=True)
class Start:
    """Start of a run, and the reason."""

    checkpoint: Path | None
    state: dict[str, Any] | None
    reason: str


@dataclass(frozen=True)
class Resume:
    """Where a training goes on, and what a later one needs to go on from it."""

    folder: Path
    """Folder of the checkpoints."""
    checkpoint: Path | None = None
    """One of them, or None for a clean start."""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    """That of the run, as in `choose`."""


@contextmanager
def writing(folder: Path, step: int) -> Iterator[Path]:
    """Yield a path for `checkpoint-<step>`; rename it into `folder` when the block succeeds.

    Raises:
        CheckpointError: the checkpoint cannot be written.
    """
    aside = folder / WRITING / f"checkpoint-{step}"
    place = folder / aside.name
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        shutil.rmtree(place, ignore_errors=True)
        os.replace(aside, place)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not isinstance(error, OSError) and not disk_is_full(error):
            raise
        raise CheckpointError(
            f"{place}: the checkpoint of step {step} could not be written ({error}). Earlier ones "
            "are complete: make room and run the same command again to resume."
        ) from error


def steps(folder: Path) -> dict[int, Path]:
    """Complete checkpoints by step, ascending."""
    pairs = ((path.name.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*"))
    return dict(sorted((int(n), p) for n, p in pairs if n.isdigit() and (p / STATE).is_file()))


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for path in list(steps(folder).values())[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def choose(folder: Path, fingerprint: Mapping[str, Any]) -> Start:
    """Choose the newest checkpoint of the same run, or a clean start.

    A run at its last step resumes there: it plays nothing and writes its result.

    Args:
        folder: folder of the checkpoints.
        fingerprint: values that a resume requires to be equal, by name: settings, base, data, code.
    """
    for path in reversed(steps(folder).values()):
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        before = state.get("fingerprint", {})
        changed = sorted(
            name for name in {*before, *fingerprint} if before.get(name) != fingerprint.get(name)
        )
        if changed:
            return Start(None, None, f"{', '.join(changed)} changed: starting clean")
        return Start(path, state, f"resuming after step {state['step']} from {path}")
    return Start(None, None, NOTHING)


def begin(folder: Path, fingerprint: Mapping[str, Any]) -> Start:
    """What `choose` returns; on a clean start, what is there is set aside, as the reason says.

    Raises:
        CheckpointError: the folder cannot be renamed.
    """
    start = choose(folder, fingerprint)
    note = "" if start.checkpoint else set_aside(folder)
    return replace(start, reason=f"{start.reason}. {note}") if note else start


def set_aside(folder: Path) -> str:
    """Rename the folder for a clean start and create an empty one.

    Returns:
        A message with the new name; empty if the folder had no checkpoint.

    Raises:
        CheckpointError: the folder cannot be renamed.
    """
    folder = folder.resolve() if folder.is_symlink() else folder  # a link to a larger disk
    message = ""
    try:
        shutil.rmtree(folder / WRITING, ignore_errors=True)  # what a killed run left
        if folder.is_dir() and any(folder.iterdir()):
            place = folder.with_name(f"{folder.name}.{datetime.now():%Y-%m-%d-%H%M%S}")
            folder.rename(place)
            message = f"The earlier checkpoints are kept in {place}."
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: earlier checkpoints cannot be set aside ({error}). Move them elsewhere and "
            "run the same command again."
        ) from error
    return message


def require_space(folder: Path, checkpoint_bytes: int, keep: int) -> None:
    """Check the free space before the first episode.

    Args:
        folder: folder of the checkpoints; created if missing.
        checkpoint_bytes: estimated size of a checkpoint.
        keep: checkpoints kept; the space must also hold the next one and the result. Those that
            are there already need none.

    Raises:
        CheckpointError: the space is too small, or the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CheckpointError(f"{folder}: checkpoints cannot be written there ({error})") from error
    more = keep + 2 - min(keep, len(steps(folder)))
    if free < checkpoint_bytes * more:
        raise CheckpointError(
            f"{folder}: {free / 1e6:.0f} MB free, but {more} x {checkpoint_bytes / 1e6:.0f} MB "
            "are needed for checkpoints and the result. To fix, make room or lower "
            "train.keep_checkpoints."
        )
