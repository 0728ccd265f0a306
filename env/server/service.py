"""Objects that all sessions of a server share: settings, problems, one sandbox host.

The server reads them once, when it starts. `RLM_SETTINGS` names a YAML file, of which the sections
`env`, `rewards` and `prepare` count, and `RLM_DATA` a folder of Parquet files. Without them, the
defaults hold and problems are generated, so that a server starts anywhere. A server with public
files takes its problems from a private data set on the Hub (`RLM_DATASET`, `RLM_DATASET_REVISION`,
`RLM_DATASET_TOKEN`). Or it generates them from a secret seed (`RLM_PROBLEM_SEED`). With
`env.splits`, `RLM_ENV_OWNER_KEY` decides which problems a client may play.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr, ValidationError

from env import variables
from env.embedding import order_of
from env.errors import RefusedError, SettingsError
from env.problems.fields import SyntheticSettings
from env.problems.store import SEEDED, ProblemStore
from env.server.sandbox import SandboxHost
from env.server.scoring import ScoringTurns
from env.settings import EnvSettings, Settings
from env.variables import DATA, DATASET, DATASET_REVISION, DATASET_TOKEN, SEED, SETTINGS
from rewards.components import LIMIT_FACTOR, par_of_papers
from rewards.settings import RewardSettings

_SECRET = "synthetic, secret seed"
"""Source of generated problems where strangers must not generate them, too."""
DEFAULT_DATA = Path("data/problems")


class PrepareSection(Settings):
    """The keys of the section `prepare` that the server needs."""

    source: str = "synthetic"
    synthetic: SyntheticSettings = SyntheticSettings()


class ServerSettings(Settings):
    """The sections that a server reads."""

    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    prepare: PrepareSection = PrepareSection()
    owner_key: SecretStr | None = None
    """From the environment, never from the file."""


def read_settings(environ: Mapping[str, str]) -> ServerSettings:
    """The settings in force.

    Raises:
        SettingsError: the file is missing or not YAML, a key or value is wrong, or the owner's key
            is too short.
    """
    key = variables.read_key(variables.OWNER_KEY, environ)
    settings = _read_file(environ.get(SETTINGS))
    return settings.model_copy(update={"owner_key": key and SecretStr(key)})


def _read_file(name: str | None) -> ServerSettings:
    """The sections of the settings file; the defaults without one."""
    if not name:
        return ServerSettings()
    try:
        data = yaml.safe_load(Path(name).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{SETTINGS} {name} is not readable as YAML ({error}).") from None
    if not isinstance(data, dict):
        raise SettingsError(f"{SETTINGS} {name} must be a mapping of sections.")
    sections: dict[str, Any] = {key: data[key] for key in ("env", "rewards") if key in data}
    prepare = data.get("prepare") or {}
    fields = PrepareSection.model_fields
    sections["prepare"] = {key: value for key, value in prepare.items() if key in fields}
    try:
        return ServerSettings.model_validate(sections)
    except ValidationError as error:
        lines = [
            f"{SETTINGS} {name}: {'.'.join(map(str, item['loc']))}: "
            + ("unknown key" if item["type"] == "extra_forbidden" else item["msg"])
            for item in error.errors()
        ]
        raise SettingsError("\n".join(lines)) from None


def read_problems(settings: ServerSettings, environ: Mapping[str, str]) -> ProblemStore:
    """The problems from `RLM_DATA` or `RLM_DATASET`, else from data/problems, else generated.

    An empty `RLM_DATA` requests generated problems, regardless of other variables.

    Raises:
        SettingsError: `RLM_DATA` is not a folder of problems, the data set cannot be read, or the
            seed is not a number.
    """
    folder = environ.get(DATA)
    if folder:
        return ProblemStore.load(Path(folder))
    synthetic, seed = settings.prepare.synthetic, environ.get(SEED)
    if folder is not None:
        return ProblemStore.generate(synthetic)
    if environ.get(DATASET):
        return _from_hub(environ)
    if seed is None:
        if any(DEFAULT_DATA.glob("*.parquet")):
            return ProblemStore.load(DEFAULT_DATA)
        return ProblemStore.generate(synthetic)
    if not seed.isdecimal():
        raise SettingsError(f"{SEED} must be a whole number, at least 0.")  # its value is secret
    store = ProblemStore.generate(synthetic.model_copy(update={"seed": int(seed)}))
    store.source = _SECRET
    return store


def _from_hub(environ: Mapping[str, str]) -> ProblemStore:
    from huggingface_hub import snapshot_download

    name, revision = environ[DATASET], environ.get(DATASET_REVISION)
    try:
        folder = snapshot_download(
            name,
            repo_type="dataset",
            revision=revision,
            allow_patterns="*.parquet",
            token=environ.get(DATASET_TOKEN) or False,
        )
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SettingsError(
            f"{DATASET} {name} cannot be read ({reason}). Check the name, {DATASET_REVISION} "
            f"and whether the token in the secret {DATASET_TOKEN} may read it."
        ) from None
    store = ProblemStore.load(Path(folder))
    store.source = f"{name} at {revision or 'main'}"
    return store


def check_budget(settings: ServerSettings, gold_papers: int) -> None:
    """Check that the tree's limits allow all turns and sub-calls that can still earn reward.

    Efficiency falls from par to three times par turns and sub-calls. A tree that ends
    earlier would punish thoroughness twice.

    Args:
        settings: limits and rewards.
        gold_papers: most gold papers of a question; 0 if no par depends on them.

    Raises:
        SettingsError: the limits are too low for the question with the most gold papers.
    """
    if not gold_papers:
        return
    limits = settings.env.limits
    needed = LIMIT_FACTOR * par_of_papers(gold_papers, settings.rewards)
    budget = limits.max_frames * limits.max_turns + limits.max_frames - 1
    if budget < needed:
        raise SettingsError(
            f"env.limits allows only {budget} turns and sub-calls (max_frames {limits.max_frames}, "
            f"max_turns {limits.max_turns}). A question with {gold_papers} gold papers can earn "
            f"efficiency up to {needed:g}. Raise max_frames or max_turns."
        )
    if limits.max_frames <= gold_papers:
        raise SettingsError(
            f"env.limits.max_frames {limits.max_frames} is too low for a question with "
            f"{gold_papers} gold papers. Allow at least {gold_papers + 1} frames."
        )


class Service:
    """Settings, problems and sandbox of one server. Thread-safe.

    Args:
        settings: sections that the server reads.
        problems: problems to serve.
        relieve: as of `SandboxHost`.
    """

    def __init__(
        self,
        settings: ServerSettings,
        problems: ProblemStore,
        relieve: Callable[[], None] = lambda: None,
    ) -> None:
        check_budget(settings, problems.most_gold_papers())
        self.settings = settings
        self.problems = problems
        self.scoring = ScoringTurns()
        order_of(settings.env.rank)  # loads the model before anybody waits for it
        self._relieve = relieve
        self._open = problems
        if settings.env.splits is not None:
            variables.hide_secrets("uvicorn.error")
            # In other sources, the difficulty follows from the number of papers with gold.
            generated = settings.prepare.source == "synthetic"
            self._open = problems.of_splits(settings.env.splits, with_difficulty=generated)
            if problems.source.startswith(SEEDED):
                self._open.source = _SECRET
        self._host: SandboxHost | None = None
        self._lock = threading.Lock()

    @property
    def host(self) -> SandboxHost:
        """The sandbox host, started at its first use.

        Raises:
            SandboxError: the boundary is not available on this machine.
        """
        with self._lock:
            if self._host is None:
                least = self.settings.rewards.min_span_chars
                self._host = SandboxHost(self.settings.env, least, self._relieve)
            return self._host

    def problems_for(self, owner_key: str | None = None) -> ProblemStore:
        """Problems that a client may play: all, or without the owner's key those of `env.splits`.

        Without the key, only generated problems have a difficulty.

        Raises:
            RefusedError: the key is wrong.
        """
        if self.settings.env.splits is None:
            return self.problems
        if owner_key is None:
            return self._open
        own = self.settings.owner_key
        key = None if own is None else own.get_secret_value()
        if key is None or not hmac.compare_digest(_bytes(key), _bytes(owner_key)):
            raise RefusedError("owner_key is wrong")
        return self.problems

    def close(self) -> None:
        """End the sandbox host and all its processes."""
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            host.close()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
