"""Deployment target `space`: the environment as a Docker Space on the Hub.

The build context is pushed in one commit, or none if nothing changed. The stage then waits until
the Space runs this commit and answers. The Space stays when the pipeline ends.
`space_problems.py` decides where its problems come from.
"""

from __future__ import annotations

import hmac
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from env import variables
from env.errors import SettingsError
from env.settings import Split
from tasks.config.params import Params
from tasks.config.settings import SpaceSettings
from tasks.deployment.build_context import stage
from tasks.deployment.checks import healthy
from tasks.deployment.hub_client import TIMEOUT_S, Hub
from tasks.deployment.space_problems import mark, problems_of, require_servable, variable
from tasks.errors import ConfigError, StageError
from tasks.io import write_json

if TYPE_CHECKING:
    from huggingface_hub import SpaceInfo, SpaceRuntime

REPORT = Path("reports/space.json")
STRANGERS: tuple[Split, ...] = ("train",)
"""Splits that a client without the owner's key may play, unless `env.splits` says otherwise."""
WAIT_S = 1200.0
"""Seconds until a pushed Space runs: the Hub builds its image first."""
POLL_S = 5.0
_FAILED = {"BUILD_ERROR": "build", "RUNTIME_ERROR": "run", "CONFIG_ERROR": "build"}
"""Stages from which a Space does not recover, and the log with the reason."""
_ASLEEP = ("PAUSED", "STOPPED", "SLEEPING")
_PATIENCE = 3
"""Polls until a failure counts that may belong to an older commit or build."""
_LOG_LINES = 15
_LINE_EVERY_S = 30.0


class Access(NamedTuple):
    """Address and secrets of a deployed Space."""

    url: str
    token: str | None
    """Token for a private Space."""
    owner_key: str


def deployed(params: Params, data: Path | None) -> Access:
    """Deploy these settings to the Space.

    Args:
        params: settings of the server and `deploy.space`.
        data: this machine's problems, for `deploy.space.problems: dataset`.

    Raises:
        ConfigError: a setting, the token or a secret is wrong or missing.
        StageError: the Hub or the Space fails.
    """
    settings = params.deploy.space
    require_servable(params, data)
    secrets = {name: variable(name, "deploy.space.secrets") for name in settings.secrets}
    hub = Hub()
    name = hub.full_name(settings.name)
    problems = problems_of(params, hub, name, data)
    values = {**settings.variables, **problems.variables}
    own_key = owner_key(hub.token, name)
    secrets |= {**problems.secrets, variables.OWNER_KEY: own_key}
    # External values as comments of the tree: when they change, so does the tree.
    marks = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    marks += [f"secret {key}" for key in secrets]
    marks += [f"owner key {mark(own_key, name)}", *filter(None, [problems.mark])]
    splits = params.env.splits or STRANGERS
    origin = (
        f"{problems.description}. Strangers play the split {', '.join(splits)}, and read figures "
        "in two digits"
    )
    tree = stage(params, origin, marks, splits=splits)
    space = Space(hub, name, settings)
    space.create()
    commit = space.publish(tree, values, secrets)
    token = hub.token if settings.private else None
    url = space.wait(commit, token)
    write_json(REPORT, {"space": name, "commit": commit, "url": url, "private": settings.private})
    return Access(url, token, own_key)


def owner_key(token: str, space: str) -> str:
    """`RLM_ENV_OWNER_KEY`, or a key that the token and the Space's name determine.

    A secret of a Space cannot be read back, and the key is stored nowhere else. So every stage
    and every later run finds the same one.

    Raises:
        ConfigError: the variable's value is short enough to be guessed.
    """
    try:
        given = variables.read_key(variables.OWNER_KEY, os.environ)
    except SettingsError as error:
        raise ConfigError(str(error)) from None
    return given or hmac.new(token.encode(), f"owner of {space}".encode(), "sha256").hexdigest()


class Space:
    """One Space on the Hub.

    Args:
        hub: client of the Hub.
        name: OWNER/NAME.
        settings: visibility.
    """

    def __init__(self, hub: Hub, name: str, settings: SpaceSettings) -> None:
        self.hub, self.name, self._settings = hub, name, settings
        self._rebuilt = False

    def create(self) -> None:
        """Create the Space, on free hardware, if it does not exist.

        Raises:
            ConfigError: its visibility differs from `deploy.space.private`.
        """
        private = self._settings.private
        why = f"deploy.space.private is {str(private).lower()}"
        options = {"space_sdk": "docker", "space_hardware": "cpu-basic"}
        self.hub.create(self.name, "space", private=private, why=why, **options)

    def publish(self, tree: Path, values: dict[str, str], secrets: dict[str, str]) -> str:
        """Push the tree, variables and secrets; return the commit.

        Secrets cannot be read back, and setting one restarts the Space. They are therefore set
        when the tree changes, before the commit, so that the new commit starts with them. A Space
        that failed with this tree also gets them and is rebuilt: one may have expired.
        """
        for value in secrets.values():
            self.hub.hide(value)
        runtime = self._runtime()
        held = self.hub.holds(self.name, "space", tree)
        self._rebuilt = held and _stage(runtime) in _FAILED
        if not held or self._rebuilt:
            api = self.hub.api
            there = self._ask("configure {}", api.get_space_variables)
            for key, value in values.items():
                if key not in there or there[key].value != value:
                    self._ask("configure {}", api.add_space_variable, key, value)
            # A data set of an earlier deployment would take precedence over the seed.
            for key in {variables.DATASET, variables.DATASET_REVISION} & set(there) - set(values):
                self._ask("configure {}", api.delete_space_variable, key)
            for key, value in secrets.items():
                self._ask("configure {}", api.add_space_secret, key, value)
        commit = self.hub.push(self.name, "space", tree)
        if self._rebuilt:
            self._ask("build {} again", self.hub.api.restart_space, factory_reboot=True)
        return commit

    def wait(self, commit: str, token: str | None) -> str:
        """Wait until this commit runs and answers; return its address.

        Raises:
            StageError: it fails or does not run in time; the message ends with its log.
        """
        started = time.monotonic()
        for stage_, running, seen in self._stages(started):
            if stage_ == "RUNNING" and running == commit:
                break
            # At first the Hub may still report the failure of an older commit or build.
            patience = _PATIENCE if self._rebuilt or running is None else 1
            if stage_ in _FAILED and running in (commit, None) and seen >= patience:
                raise StageError(self._failure(stage_))
            if time.monotonic() - started > WAIT_S:
                raise StageError(self._too_late(stage_, running, commit))
        url = _address(self._ask("read {}", self.hub.api.space_info))
        with variables.addressed(url, token):
            while not healthy(url, timeout_s=TIMEOUT_S):
                if time.monotonic() - started > WAIT_S:
                    raise StageError(
                        f"the space {self.name} runs, but {url}/health does not answer "
                        f"after {WAIT_S:g} s. See the end of its log:\n{self._log('run')}"
                    )
                time.sleep(POLL_S)
        return url

    def _stages(self, started: float) -> Iterator[tuple[str, str | None, int]]:
        """Stage, commit, and number of equal polls in a row; changes are printed."""
        console, woken = Console(stderr=True), False
        before: tuple[str, str | None] | None = None
        printed, seen = 0.0, 0
        while True:
            runtime = self._runtime()
            now = (_stage(runtime), runtime.raw.get("sha"))
            waited = time.monotonic() - started
            seen = seen + 1 if now == before else 1
            if now != before or waited - printed > _LINE_EVERY_S:
                commit = f" at {now[1][:8]}" if now[1] else ""
                console.print(
                    f"deploy: space {self.name}: {now[0]}{commit}, {waited:.0f} s", highlight=False
                )
                before, printed = now, waited
            if now[0] in _ASLEEP and not woken:
                self._ask("wake {}", self.hub.api.restart_space)
                woken = True
            yield *now, seen
            time.sleep(POLL_S)

    def _runtime(self) -> SpaceRuntime:
        runtime: SpaceRuntime = self._ask("ask how {} is", self.hub.api.get_space_runtime)
        return runtime

    def _ask(self, doing: str, call: Callable[..., Any], *given: object, **named: object) -> Any:
        """Result of a method of the client for this Space, whose name replaces `{}`."""
        doing = doing.format(f"the space {self.name}")
        return self.hub.ask(doing, call, self.name, *given, **named)

    def _failure(self, stage_: str) -> str:
        log = self._log(_FAILED[stage_])
        return f"the space {self.name} ended in {stage_}. Fix the cause in its log:\n{log}"

    def _too_late(self, stage_: str, running: str | None, commit: str) -> str:
        what = f"is {stage_}"
        if stage_ == "RUNNING" and running:
            what = f"still runs the older commit {running[:8]}"
        return (
            f"the space {self.name} {what} after {WAIT_S:g} s, "
            f"not {commit[:8]}. The commit is pushed: look at its page, or "
            f"wait and run again. The end of its log:\n{self._log('build')}"
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
    """URL of the Space."""
    if info.host:
        return info.host.rstrip("/")
    from openenv.core.utils import hf_space_subdomain

    return f"https://{hf_space_subdomain(info.id)}.hf.space"
