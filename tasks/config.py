"""The settings in force: params.yaml, a profile, overrides; checked before anything starts.

Each package owns the sections it reads; this module composes them and writes the one file that
stages and DVC read, `params.resolved.yaml`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from agent.nano.settings import NanoSettings
from agent.settings import LEAST_PROBLEMS, GenerationSettings, TrainSettings
from env.problems.schema import Level
from env.problems.settings import (
    AlignSettings,
    FilesSettings,
    HubSettings,
    SplitSettings,
    SyntheticSettings,
)
from env.settings import EnvSettings, Settings
from rewards.settings import RewardSettings
from tasks.errors import ConfigError

PARAMS = Path("params.yaml")
RESOLVED = Path("params.resolved.yaml")
PROFILES = Path("profiles")


class PrepareSettings(Settings):
    """Where problems come from."""

    source: Literal["synthetic", "hub", "files"] = "synthetic"
    synthetic: SyntheticSettings = SyntheticSettings()
    hub: HubSettings = HubSettings()
    files: FilesSettings = FilesSettings()
    align: AlignSettings = AlignSettings()
    splits: SplitSettings = SplitSettings()

    @property
    def levels(self) -> list[str]:
        """The difficulties of the source, sorted."""
        if self.source == "synthetic":
            return sorted(self.synthetic.levels)
        return sorted(get_args(Level))


class ValidateSettings(Settings):
    """Bounds of the checks on the data."""

    min_rows: int = Field(20, ge=1, description="rows per split")
    max_rejected: float = Field(
        0.5, ge=0, le=1, description="share of a source's rows that may be rejected"
    )
    max_papers: int = Field(64, ge=1, le=10_000, description="papers of one problem")
    max_text_chars: int = Field(200_000, ge=1, description="characters of one paper")
    tier_share: float = Field(0.02, ge=0, le=1, description="least share of each tier")
    difficulty_share: float = Field(0.1, ge=0, le=1, description="least share of each difficulty")


class AuditSettings(Settings):
    """Policies without a model on the problems themselves."""

    problems: int = Field(50, ge=1, description="problems of each difficulty")
    min_oracle: float = Field(0.9, ge=0, le=1, description="least reward of known gold")
    sessions: int = Field(32, ge=1, description="episodes at the same time")
    samples: int = Field(2, ge=0, description="problems of each difficulty shown on the page")
    seed: int = Field(0, ge=0)


class SpaceSettings(Settings):
    """The environment as a Space on the Hub. The token is none of the settings."""

    name: str = Field(
        "rlm",
        pattern=r"^([\w.-]+/)?[\w.-]+$",
        description="OWNER/NAME, or NAME of the token's own account",
    )
    private: bool = Field(True, description="only those who may read it can use it")
    hardware: str = Field("cpu-basic", description="as the Hub names it; others than this cost")
    problems: Literal["seed", "dataset"] = Field(
        "seed", description="generated from a secret seed, or from a private data set"
    )
    dataset: str = Field(
        "rlm-problems",
        pattern=r"^([\w.-]+/)?[\w.-]+$",
        description="the private data set, named as the Space is",
    )
    variables: dict[str, str] = Field({}, description="environment variables, for all to read")
    secrets: list[str] = Field(
        [], description="environment variables of this machine that the Space gets as secrets"
    )
    wait_s: float = Field(1200.0, gt=0, description="seconds until it must run this commit")
    poll_s: float = Field(5.0, gt=0, le=60, description="seconds between two questions")
    timeout_s: float = Field(30.0, gt=0, description="seconds of one request to the Hub")
    attempts: int = Field(4, ge=1, le=20, description="tries when the Hub does not answer")


class DockerSettings(Settings):
    """The environment as a container of a local engine."""

    image: str = Field("rlm-env", description="name of the image that is built")
    build_s: float = Field(1800.0, gt=0, description="seconds that the build may take")


class DeploySettings(Settings):
    """Where the environment runs."""

    target: Literal["local", "space", "docker"] = "local"
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535, description="0 picks a free port")
    wait_s: float = Field(120.0, gt=0, description="seconds to wait for health")
    space: SpaceSettings = SpaceSettings()
    docker: DockerSettings = DockerSettings()


class WarmstartSettings(Settings):
    """What the base model is."""

    kind: Literal["nano", "champion", "none"] = Field(
        "nano", description="champion: the registered one goes on; none: an untrained nano base"
    )
    version: str | None = Field(
        None,
        pattern=r"^\d+$",
        description="registered version that `champion` means; null: the alias, of which DVC sees "
        "no change, so `rlm/retrain` names it",
    )
    weights_hash: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{16}$",
        description="the tag that this version must have: another registry counts from 1 as well",
    )
    nano: NanoSettings = NanoSettings()


class GateSettings(Settings):
    """The zero-shot reward gate."""

    episodes: int = Field(10, ge=1, description="episodes per level")
    max_episodes: int = Field(60, ge=1, description="when all are 0, until the first success")
    baseline_episodes: int = Field(64, ge=20, description="episodes of the baseline on the plot")
    generation: GenerationSettings = GenerationSettings()
    seed: int = Field(0, ge=0)


class ExportSettings(Settings):
    """The merged 16-bit save and its checks."""

    dtype: Literal["float16", "bfloat16"] = "float16"
    max_logit_error: float = Field(
        0.001, gt=0, description="relative error of logits: 0.001 float16, 0.01 bfloat16"
    )
    prompts: int = Field(20, ge=1, description="prompts whose greedy completions must agree")
    dequantise: bool = Field(False, description="a 4-bit base is dequantised before the merge")
    seed: int = Field(0, ge=0)


class JudgeSettings(Settings):
    """An LLM judge that reads some answers too: for audits, never a reward."""

    base_url: str | None = Field(
        None, description="an OpenAI-compatible endpoint, ending in /v1 mostly; null: no judge"
    )
    model: str = Field("", description="the name the endpoint knows")
    max_episodes: int = Field(60, ge=1, description="greedy episodes judged of each model")
    concurrency: int = Field(8, ge=1, le=256, description="requests in flight")
    timeout_s: float = Field(60.0, gt=0, description="seconds of one request")
    prompt_price: float = Field(0.0, ge=0, description="money for a million tokens read")
    completion_price: float = Field(0.0, ge=0, description="money for a million tokens written")

    @model_validator(mode="after")
    def _has_a_model(self) -> JudgeSettings:
        if self.base_url is not None and not self.model:
            raise ValueError("base_url is set, so model must name the judging model")
        return self


class EvaluateSettings(Settings):
    """Before and after on the same held-out problems and seeds."""

    episodes: int = Field(240, ge=20)
    bootstrap: int = Field(10_000, ge=100, description="bootstrap resamples")
    sampling_seeds: int = Field(1, ge=1, description="sampled passes over the problems")
    latency_episodes: int = Field(20, ge=1, description="episodes played alone, for latency")
    transcripts: int = Field(6, ge=1, description="whole episodes kept per difficulty and model")
    judge: JudgeSettings = JudgeSettings()
    generation: GenerationSettings = GenerationSettings()
    seed: int = Field(0, ge=0)


class PlotsSettings(Settings):
    """How the plots look."""

    smooth: int = Field(5, ge=1, description="steps of the moving average")
    dpi: int = Field(120, ge=50, le=600)
    transcripts: int = Field(3, ge=1, description="before/after pairs in the report")


class RegisterSettings(Settings):
    """The MLflow registry."""

    model_name: str = "rlm"


class RetrainSettings(Settings):
    """The deployment `rlm/retrain`: fresh data, from the champion on."""

    seed: str = Field(
        "%Y%m%d",
        description="strftime format of the run's date (UTC) that gives prepare.synthetic.seed",
    )
    start: Literal["champion", "profile"] = Field(
        "champion", description="profile: the warm start that the profile names"
    )
    wait_s: float = Field(
        3600.0, ge=0, description="seconds to wait for another run in this folder"
    )

    @model_validator(mode="after")
    def _gives_a_number(self) -> RetrainSettings:
        if not datetime(2026, 1, 2, tzinfo=UTC).strftime(self.seed).isdigit():
            raise ValueError(f"seed: {self.seed!r} must give digits, such as %Y%m%d")
        return self


class MeasureSettings(Settings):
    """The deployment `rlm/evaluate`: what it costs to ask a model behind an endpoint."""

    concurrency: int = Field(16, ge=1, le=256, description="requests in flight")
    timeout_s: float = Field(120.0, gt=0, description="seconds of one request")
    prompt_price: float = Field(0.0, ge=0, description="money for a million tokens read")
    completion_price: float = Field(0.0, ge=0, description="money for a million tokens written")


class PromoteSettings(Settings):
    """When the challenger replaces the champion."""

    mode: Literal["greedy", "sampled"] = Field(
        "greedy", description="how both are played, and how a registered model serves"
    )
    problems: int = Field(
        216, ge=LEAST_PROBLEMS, description="problems of each of the two fresh sets"
    )
    level: float = Field(0.99, ge=0.9, lt=1, description="of the paired interval by group")
    bootstrap: int = Field(10_000, ge=1000, description="bootstrap resamples")


class TrackingSettings(Settings):
    """MLflow."""

    experiment: str = "rlm"
    traces: int = Field(
        2,
        ge=0,
        le=50,
        description="episodes traced every train.table_every steps, and per "
        "difficulty and model in evaluate; 0: none",
    )
    system_s: float = Field(
        5.0, ge=0, description="seconds between samples of processor and memory; 0: none"
    )


class VersionSettings(Settings):
    """DVC."""

    remote: str = "local"


class Params(Settings):
    """Every setting of one pipeline run."""

    profile: str = "nano"
    threads: int = Field(
        1, ge=1, le=256, description="CPU threads of torch; the environment needs a core as well"
    )
    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    prepare: PrepareSettings = PrepareSettings()
    validate_: ValidateSettings = Field(ValidateSettings(), alias="validate")
    deploy: DeploySettings = DeploySettings()
    audit: AuditSettings = AuditSettings()
    warmstart: WarmstartSettings = WarmstartSettings()
    gate: GateSettings = GateSettings()
    train: TrainSettings = TrainSettings()
    export: ExportSettings = ExportSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    plots: PlotsSettings = PlotsSettings()
    register_: RegisterSettings = Field(RegisterSettings(), alias="register")
    promote: PromoteSettings = PromoteSettings()
    version: VersionSettings = VersionSettings()
    retrain: RetrainSettings = RetrainSettings()
    measure: MeasureSettings = MeasureSettings()
    tracking: TrackingSettings = TrackingSettings()

    @property
    def serving(self) -> GenerationSettings:
        """How a registered model writes, and how promotion compares: in `promote.mode`."""
        if self.promote.mode == "greedy":
            return self.evaluate.generation.model_copy(update={"temperature": 0.0})
        return self.evaluate.generation

    @model_validator(mode="after")
    def _fits_together(self) -> Params:
        levels = self.prepare.levels
        for level in self.train.curriculum.levels:
            if level not in levels:
                raise ValueError(f"train.curriculum.levels: {level!r} is not in {levels}")
        if self.train.curriculum.target not in self.train.curriculum.levels:
            raise ValueError("train.curriculum.target must be one of train.curriculum.levels")
        if self.prepare.source != "synthetic":
            return self  # a problem with too many gold papers is rejected when it is read
        most = max(level.max_gold for level in self.prepare.synthetic.levels.values())
        if self.env.limits.max_children < most:
            raise ValueError(
                f"env.limits.max_children {self.env.limits.max_children} is below the "
                f"{most} gold papers a problem may need (prepare.synthetic.levels)"
            )
        return self


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file.

    Raises:
        ConfigError: the file is missing, is no YAML, or holds no mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; run from the project's root") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected sections (a mapping), found {type(data).__name__}")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid onto `base`; mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        merged[key] = value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """`train.steps=3` as a nested mapping; the value is read as YAML.

    Raises:
        ConfigError: no `=` in it, or the value is no YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {text!r}: write it as section.key=value")
    try:
        nested: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is no YAML: {error}") from None
    for key in reversed(path.strip().split(".")):
        nested = {key: nested}
    return dict(nested)


def check(data: Mapping[str, Any], source: str) -> Params:
    """Settings from plain data.

    Raises:
        ConfigError: an unknown key, a value out of bounds, weights that do not sum to 1; each
            named by the path of its key.
    """
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{source}: {'.'.join(str(part) for part in item['loc']) or '(whole file)'}: "
            + ("unknown key" if item["type"] == "extra_forbidden" else item["msg"])
            + (
                f" (found {item['input']!r})"
                if item["type"] not in ("extra_forbidden", "value_error", "missing")
                else ""
            )
            for item in error.errors()
        ]
        raise ConfigError("\n".join(lines)) from None


def resolve(profile: str = "nano", overrides: Sequence[str] = ()) -> Params:
    """Params.yaml, then the profile (nano is params.yaml itself), then `section.key=value`s."""
    data = read_yaml(PARAMS)
    source = str(PARAMS)
    if profile != data.get("profile", "nano"):
        path = PROFILES / f"{profile}.yaml"
        if not path.exists():
            known = sorted(p.stem for p in PROFILES.glob("*.yaml"))
            raise ConfigError(f"profile {profile!r}: no {path}; known: {['nano', *known]}")
        data = merge(merge(data, read_yaml(path)), {"profile": profile})
        source = f"{PARAMS} + {path}"
    for text in overrides:
        data = merge(data, parse_override(text))
        source += f" + {text}"
    return check(data, source)


def write_resolved(params: Params) -> Path:
    """Write the settings in force, whole or not at all; untouched when nothing changed.

    The section `derived` is not read back: dvc.yaml takes from it what follows from the settings.
    """
    data = params.model_dump(by_alias=True, mode="json")
    text = yaml.safe_dump({**data, "derived": derive(params)}, sort_keys=False)
    if not RESOLVED.exists() or RESOLVED.read_text(encoding="utf-8") != text:
        temporary = RESOLVED.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, RESOLVED)
    return RESOLVED


def derive(params: Params) -> dict[str, str]:
    """Paths that follow from the settings, for dvc.yaml.

    DVC knows no dependency that is sometimes absent: where a source reads no file, the module
    that would read it stands for it, which `prepare` depends on anyway.
    """
    trained = "models/adapter" if params.train.method == "lora" else "models/policy"
    problems = documents = None
    if params.prepare.source == "files":
        problems, documents = params.prepare.files.path, params.prepare.files.documents
    elif params.prepare.source == "hub":
        problems = params.prepare.hub.name
    return {
        "trained": trained,
        "problems": _existing(problems) or "env/problems/tables.py",
        "documents": _existing(documents) or "env/problems/documents.py",
        "trained_before": _existing(params.prepare.splits.trained) or "env/problems/splits.py",
    }


def _existing(path: str | None) -> str | None:
    # Of a missing file the stage says more than DVC would.
    return path if path is not None and Path(path).exists() else None


def read_resolved(path: Path) -> Params:
    """Settings that `write_resolved` wrote.

    Raises:
        ConfigError: the file is missing or does not fit this version of the code.
    """
    data = read_yaml(path)
    data.pop("derived", None)
    return check(data, str(path))


def load_resolved() -> Params:
    """The settings in force, as the stages read them; made from params.yaml when absent."""
    if not RESOLVED.exists():
        write_resolved(resolve())
    return read_resolved(RESOLVED)
