"""The deployment target `space`: the environment as a Docker Space on the Hub.

Stages the tree, pushes it in one commit (none when nothing changed), and waits until the Space
runs this very commit and answers. A Space stays when the pipeline ends. Neighbours: `staging.py`
makes the tree, `space_problems.py` says what it plays, `hub.py` asks the Hub, `answers.py` the
Space.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from env import access
from tasks.answers import healthy
from tasks.config import Params, SpaceSettings
from tasks.errors import ConfigError, StageError
from tasks.hub import Hub
from tasks.outputs import write_json
from tasks.space_problems import check, problems_of, variable
from tasks.staging import stage

if TYPE_CHECKING:
    from huggingface_hub import SpaceInfo, SpaceRuntime

REPORT = Path("reports/space.json")
_FAILED = {"BUILD_ERROR": "build", "RUNTIME_ERROR": "run", "CONFIG_ERROR": "build"}
"""Stages that no waiting mends, and the log that says why."""
_ASLEEP = ("PAUSED", "STOPPED", "SLEEPING")
_PATIENCE = 3
"""Polls after which an end is believed that may be of an older commit, or of an earlier build."""
_LOG_LINES = 15
_LINE_EVERY_S = 30.0


def deployed(params: Params, data: Path | None) -> tuple[str, str | None]:
    """Have the Space run what these settings describe.

    Args:
        params: what to serve, and `deploy.space`.
        data: this machine's problems, for `deploy.space.problems: dataset`.

    Returns:
        Its address, and the token that opens it when it is private.

    Raises:
        ConfigError: a setting, the token or a secret is wrong or missing.
        StageError: the Hub or the Space fails; the message says how.
    """
    settings = params.deploy.space
    check(params, data)
    secrets = {name: variable(name, "deploy.space.secrets") for name in settings.secrets}
    hub = Hub(settings)
    name = hub.full_name(settings.name)
    problems = problems_of(params, hub, name, data)
    variables = {**settings.variables, **problems.variables}
    secrets |= problems.secrets
    # What the tree depends on and does not hold: when it changes, so does the tree.
    marks = [f"{key}={json.dumps(value)}" for key, value in variables.items()]
    marks += [f"secret {key}" for key in secrets]
    tree = stage(params, problems.told, [*marks, *filter(None, [problems.mark])])
    space = Space(hub, name, settings)
    space.create()
    commit = space.publish(tree, variables, secrets)
    token = hub.token if settings.private else None
    url = space.wait(commit, token)
    told = {"space": name, "commit": commit, "url": url, "private": settings.private}
    write_json(REPORT, told)
    return url, token


class Space:
    """One Space on the Hub.

    Args:
        hub: asks.
        name: OWNER/NAME.
        settings: hardware, visibility, how long to wait.
    """

    def __init__(self, hub: Hub, name: str, settings: SpaceSettings) -> None:
        self.hub, self.name, self._settings = hub, name, settings
        self._rebuilt = False

    def create(self) -> None:
        """Make it, if it is not there.

        Raises:
            ConfigError: it is there, and more or less public than the settings say.
        """
        self.hub.ask(
            f"create the space {self.name}",
            self.hub.api.create_repo,
            self.name,
            repo_type="space",
            space_sdk="docker",
            private=self._settings.private,
            space_hardware=self._settings.hardware,
            exist_ok=True,
        )
        if bool(self._info().private) != self._settings.private:
            is_, wanted = ("public", "private") if self._settings.private else ("private", "public")
            raise ConfigError(
                f"deploy: the space {self.name} is {is_}, deploy.space.private says {wanted}; "
                "change the one or the other: it is not changed silently"
            )

    def publish(self, tree: Path, variables: dict[str, str], secrets: dict[str, str]) -> str:
        """Push the tree and what goes with it; the commit that holds it.

        Secrets cannot be read back, and setting one restarts the Space: they are set when the
        tree changes, before the commit, so that the new commit starts with them. A Space that
        ended at this very tree gets them too, and is built again: one may have expired.
        """
        for value in secrets.values():
            self.hub.hide(value)
        runtime = self._runtime()
        held = self.hub.holds(self.name, "space", tree)
        self._rebuilt = held and _stage(runtime) in _FAILED
        if not held or self._rebuilt:
            api, doing = self.hub.api, f"configure the space {self.name}"
            there = self.hub.ask(doing, api.get_space_variables, self.name)
            for key, value in variables.items():
                if key not in there or there[key].value != value:
                    self.hub.ask(doing, api.add_space_variable, self.name, key, value)
            # A data set of an earlier deployment would go before the seed.
            for key in {access.DATASET, access.DATASET_REVISION} & set(there) - set(variables):
                self.hub.ask(doing, api.delete_space_variable, self.name, key)
            for key, value in secrets.items():
                self.hub.ask(doing, api.add_space_secret, self.name, key, value)
        self._set_hardware(runtime)
        commit = self.hub.push(self.name, "space", tree)
        if self._rebuilt:
            self.hub.ask(
                f"build the space {self.name} again",
                self.hub.api.restart_space,
                self.name,
                factory_reboot=True,
            )
        return commit

    def wait(self, commit: str, token: str | None) -> str:
        """Wait until this very commit runs and answers; its address.

        Raises:
            StageError: it fails, with the end of its log, or does not run it in time.
        """
        started = time.monotonic()
        for stage_, running, seen in self._stages(started):
            if stage_ == "RUNNING" and running == commit:
                break
            # At first the end of an older commit, or of an earlier build, may still be reported.
            patience = _PATIENCE if self._rebuilt or running is None else 1
            if stage_ in _FAILED and running in (commit, None) and seen >= patience:
                raise StageError(self._failure(stage_))
            if time.monotonic() - started > self._settings.wait_s:
                raise StageError(self._too_late(stage_, running, commit))
        url = _address(self._info())
        with access.addressed(url, token):
            while not healthy(url, timeout_s=self._settings.timeout_s):
                if time.monotonic() - started > self._settings.wait_s:
                    raise StageError(
                        f"deploy: the space {self.name} runs, but {url}/health does not answer "
                        f"after {self._settings.wait_s:g} s (deploy.space.wait_s); the end of its "
                        f"log:\n{self._log('run')}"
                    )
                time.sleep(self._settings.poll_s)
        return url

    def _stages(self, started: float) -> Iterator[tuple[str, str | None, int]]:
        """Stage, commit, and how often both were seen in a row; told when they change."""
        console, woken = Console(stderr=True), False
        before: tuple[str, str | None] | None = None
        told, seen = 0.0, 0
        while True:
            runtime = self._runtime()
            now = (_stage(runtime), runtime.raw.get("sha"))
            waited = time.monotonic() - started
            seen = seen + 1 if now == before else 1
            if now != before or waited - told > _LINE_EVERY_S:
                commit = f" at {now[1][:8]}" if now[1] else ""
                console.print(
                    f"deploy: space {self.name}: {now[0]}{commit}, {waited:.0f} s", highlight=False
                )
                before, told = now, waited
            if now[0] in _ASLEEP and not woken:
                doing = f"wake the space {self.name}"
                self.hub.ask(doing, self.hub.api.restart_space, self.name)
                woken = True
            yield *now, seen
            time.sleep(self._settings.poll_s)

    def _runtime(self) -> SpaceRuntime:
        found: SpaceRuntime = self.hub.ask(
            f"ask how the space {self.name} is", self.hub.api.get_space_runtime, self.name
        )
        return found

    def _set_hardware(self, runtime: SpaceRuntime) -> None:
        has = runtime.requested_hardware or runtime.hardware
        if has is not None and str(getattr(has, "value", has)) != self._settings.hardware:
            self.hub.ask(
                f"set the hardware of the space {self.name}",
                self.hub.api.request_space_hardware,
                self.name,
                self._settings.hardware,
            )

    def _info(self) -> SpaceInfo:
        found: SpaceInfo = self.hub.ask(
            f"read the space {self.name}", self.hub.api.space_info, self.name
        )
        return found

    def _failure(self, stage_: str) -> str:
        return (
            f"deploy: the space {self.name} ended in {stage_}; mend that and run again; the end of "
            f"its log:\n{self._log(_FAILED[stage_])}"
        )

    def _too_late(self, stage_: str, running: str | None, commit: str) -> str:
        what = (
            f"still runs the older commit {running[:8]}"
            if stage_ == "RUNNING" and running
            else f"is {stage_}"
        )
        return (
            f"deploy: the space {self.name} {what} after {self._settings.wait_s:g} s "
            f"(deploy.space.wait_s), not {commit[:8]}; look at its page, or wait and run again: "
            f"the commit is pushed; the end of its log:\n{self._log('build')}"
        )

    def _log(self, kind: str) -> str:
        try:
            lines = self.hub.ask("read its log", self._read_log, kind == "build")
        except (ConfigError, StageError):
            return "(its log cannot be read)"
        return self.hub.clean("\n".join(lines)) or "(its log is empty)"

    def _read_log(self, build: bool) -> list[str]:
        lines = self.hub.api.fetch_space_logs(self.name, build=build)
        return [line.rstrip("\n") for line in deque(lines, maxlen=_LOG_LINES)]


def _stage(runtime: SpaceRuntime) -> str:
    return str(getattr(runtime.stage, "value", runtime.stage))


def _address(info: SpaceInfo) -> str:
    """Where it answers."""
    if info.host:
        return info.host.rstrip("/")
    from openenv.core.utils import hf_space_subdomain

    return f"https://{hf_space_subdomain(info.id)}.hf.space"
