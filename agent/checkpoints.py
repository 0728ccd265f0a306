"""Checkpoints that a kill at any moment cannot spoil: found, begun, pruned, and room for them.

A checkpoint is a folder `checkpoint-N`; it is written under another name and renamed when whole,
so whatever bears the name is complete. What is inside is the trainer's; only `state.json`, the
caller's part, is read here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import CheckpointError

STATE = "state.json"
WRITING = ".writing"


@dataclass(frozen=True)
class Start:
    """Where a run begins, and why."""

    checkpoint: Path | None
    state: dict[str, Any] | None
    reason: str


@contextmanager
def writing(folder: Path, step: int) -> Iterator[Path]:
    """A path to write `checkpoint-<step>` at; renamed into `folder` when the block succeeds.

    Raises:
        CheckpointError: the disk refused.
    """
    aside = folder / WRITING / f"checkpoint-{step}"
    place = folder / aside.name
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        shutil.rmtree(place, ignore_errors=True)
        os.replace(aside, place)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"{place}: the checkpoint of step {step} could not be written ({error}); earlier ones "
            "are whole: make room and run the same command again to resume"
        ) from error


def steps(folder: Path) -> dict[int, Path]:
    """Complete checkpoints by step, ascending."""
    found = {}
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if number.isdigit() and (path / STATE).is_file():
            found[int(number)] = path
    return dict(sorted(found.items()))


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep`."""
    for path in list(steps(folder).values())[:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def choose(folder: Path, fingerprint: Mapping[str, Any]) -> Start:
    """The newest checkpoint of the same run, or a clean start.

    A run that had come to its last step resumes there: nothing is played, its result is written.

    Args:
        folder: of the checkpoints.
        fingerprint: what must be equal for a resume, by name: settings, base, data, code.
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
    return Start(None, None, "no checkpoint: starting clean")


def clear(folder: Path) -> None:
    """Remove what an earlier run left; nothing else is in this folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def require_space(folder: Path, checkpoint_bytes: int, keep: int) -> None:
    """Check for room before anything is played.

    Args:
        folder: of the checkpoints; made if need be.
        checkpoint_bytes: estimate of one checkpoint.
        keep: checkpoints kept; one more is being written, and one is the result.

    Raises:
        CheckpointError: not enough space, or not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot hold checkpoints: {error}") from error
    needed = checkpoint_bytes * (keep + 2)
    if free < needed:
        raise CheckpointError(
            f"{folder}: {free / 1e6:.0f} MB free, but {keep + 2} x {checkpoint_bytes / 1e6:.0f} MB "
            "are needed for checkpoints and the result: make room or lower train.keep_checkpoints"
        )
