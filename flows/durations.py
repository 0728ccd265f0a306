"""Time that is left in a run, from earlier runs with the same settings on this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress

from env.settings import flatten
from flows.stages import STAGES
from tasks import paths
from tasks.config.params import Params
from tasks.io import digest, read_json, write_json
from tasks.reporting.progress import in_words
from tasks.tracking import runs

FILE = paths.RUN / "durations.json"
LAST = ("register", "promote", "push")
"""Stages that have nothing to do without a new model."""
KEPT = 300
"""Most entries of the file; a stage with its settings is one."""
KEPT_S = 1.0
"""Seconds of a stage that DVC does not run again."""
_SHARED = ("deploy", "engine", "model", "threads")
"""Settings beside a stage's own that its time depends on."""


class Durations:
    """Seconds of each stage when it last ran from its beginning to its end.

    Args:
        params: settings in force; a seed does not count.
        unchanged: stages that DVC does not run again.
    """

    def __init__(self, params: Params, unchanged: Sequence[str]) -> None:
        self._kept = {*unchanged, *(LAST if "export" in unchanged else ())}
        self._keys = {name: _key(name, params) for name in STAGES}
        self._seconds: dict[str, float | None] = read_json(FILE)
        self._before = self._seconds

    def begin(self, name: str) -> None:
        """Note that a stage began: if it is killed, its next run is only the rest of one."""
        key, self._before = self._keys[name], self._seconds
        self._seconds = {k: v for k, v in self._before.items() if k != key} | {key: None}
        self._write()

    def end(self, name: str, outcome: str, seconds: float) -> None:
        """Note the end of a stage; a stage that resumed leaves no figure.

        Args:
            name: the stage.
            outcome: as in `summary.StageRow`.
            seconds: since `begin`.
        """
        key = self._keys[name]
        if outcome == "cached" or (outcome == "done" and name in self._kept):
            self._seconds = self._before
        elif outcome == "done" and self._before.get(key, seconds) is None:
            del self._seconds[key]
        elif outcome == "done":
            self._seconds[key] = round(seconds, 1)
        self._write()

    def left(self, name: str) -> str:
        """Time of a stage, and of it with all later ones; empty if both are unknown."""
        names = list(STAGES)
        each = [self._expected(later) for later in names[names.index(name) :]]
        parts = [] if each[0] is None else [f"{name} {in_words(each[0])}"]
        whole = [seconds for seconds in each if seconds is not None]
        if len(whole) == len(each):
            parts.append(f"whole run {in_words(sum(whole))}")
        return "; ".join(parts) + " left" if parts else ""

    def _expected(self, name: str) -> float | None:
        return KEPT_S if name in self._kept else self._seconds.get(self._keys[name])

    def _write(self) -> None:
        with suppress(OSError):  # an estimate is worth no failed run
            write_json(FILE, dict(list(self._seconds.items())[-KEPT:]))


def _key(name: str, params: Params) -> str:
    """Name of a stage and hash of what its time depends on: machine, and settings but seeds."""
    settings = flatten(params.model_dump(by_alias=True, mode="json"))
    read = {
        setting: value
        for setting, value in settings.items()
        if not setting.endswith("seed")
        and (runs.reads(name, setting) or setting.split(".")[0] in _SHARED)
    }
    return f"{name} {digest([platform.node(), os.cpu_count(), read])}"
