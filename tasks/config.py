"""Settings of a run: params.yaml, a profile and overrides, checked before anything starts.

Each package owns the sections that it reads. This module composes them and writes
`params.resolved.yaml`, the only file of settings that stages and DVC read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from agent.nano.settings import NanoSettings
from agent.settings import (
    LEAST_PROBLEMS,
    MADE,
    NANO,
    EngineSettings,
    GenerationSettings,
    ModelSettings,
    SftSettings,
    TemplateArguments,
    TrainSettings,
)
from env.problems.schema import Level, Split
from env.problems.settings import SyntheticSettings
from env.settings import EnvSettings, Settings
from rewards.settings import RewardSettings
from tasks.data.settings import AlignSettings, FilesSettings, HubSettings, SplitSettings
from tasks.errors import ConfigError
from tasks.io import write_text
from tasks.renamed import REMOVED, RENAMED

PARAMS = Path("params.yaml")
RESOLVED = Path("params.resolved.yaml")
PROFILES = Path("profiles")
DEMONSTRATED = {
    "sft_problems": "data/problems",
    "sft_stage": "tasks/demonstrate.py",
    "sft_settings_code": "agent/settings.py",
    "sft_policies": "agent/policies",
    "sft_rollouts": "agent/rollouts",
    "sft_training": "agent/training",
    "sft_environment": "env",
    "sft_rewards": "rewards",
}
"""Inputs in dvc.yaml of `warmstart.kind: sft`."""
TAUGHT = {"made": "agent/made", "made_stage": "tasks/made_model.py"}
"""Inputs in dvc.yaml of `model.source: made`."""
HubName = Annotated[str, Field(pattern=r"^([\w.-]+/)?[\w.-]+$")]


class PrepareSettings(Settings):
    """Source of the problems."""

    source: Literal["synthetic", "hub", "files"] = "synthetic"
    synthetic: SyntheticSettings = SyntheticSettings()
    hub: HubSettings = HubSettings()
    files: FilesSettings = FilesSettings()
    align: AlignSettings = AlignSettings()
    splits: SplitSettings = SplitSettings()

    @property
    def levels(self) -> list[str]:
        """Difficulties of the source, sorted."""
        if self.source == "synthetic":
            return sorted(self.synthetic.levels)
        return sorted(get_args(Level))

    def levels_of(self, split: Split) -> list[str]:
        """Difficulties that a split must have, sorted."""
        if self.source == "synthetic":
            return sorted(self.synthetic.levels_of(split))
        return self.levels


class ValidateSettings(Settings):
    """Limits of the checks on the data."""

    min_rows: int = Field(20, ge=1, description="minimum rows per split")
    max_rejected: float = Field(0.5, ge=0, le=1, description="maximum share of rejected rows")
    max_papers: int = Field(64, ge=1, le=10_000, description="maximum papers per problem")
    max_text_chars: int = Field(200_000, ge=1, description="maximum characters per paper")
    tier_share: float = Field(0.02, ge=0, le=1, description="minimum share of each tier")
    difficulty_share: float = Field(0.1, ge=0, le=1, description="minimum share of each difficulty")


class AuditSettings(Settings):
    """Episodes of policies without a model, to check the problems."""

    problems: int = Field(50, ge=1, description="problems per difficulty")
    min_oracle: float = Field(0.9, ge=0, le=1, description="minimum reward of known gold")
    max_search: float = Field(
        0.35,
        ge=0,
        le=1,
        description="maximum F1 of a search for method and field (world fields without labels)",
    )
    sessions: int = Field(32, ge=1, description="concurrent episodes")
    samples: int = Field(2, ge=0, description="problems per difficulty on the page")
    seed: int = Field(0, ge=0)


class SpaceSettings(Settings):
    """Deployment as a Space on the Hub. The token is not a setting."""

    name: HubName = Field("rlm", description="OWNER/NAME, or NAME in the account of the token")
    private: bool = Field(True, description="only accounts with read access can use it")
    hardware: str = Field("cpu-basic", description="the Hub's name; other hardware costs money")
    problems: Literal["seed", "dataset"] = Field(
        "seed", description="generate from a secret seed, or load a private data set"
    )
    dataset: HubName = Field("rlm-problems", description="private data set, named like the Space")
    variables: dict[str, str] = Field({}, description="public environment variables")
    secrets: list[str] = Field(
        [], description="environment variables of this machine to copy as secrets"
    )
    wait_s: float = Field(1200.0, gt=0, description="seconds to wait until the Space runs")
    poll_s: float = Field(5.0, gt=0, le=60, description="seconds between status requests")
    timeout_s: float = Field(30.0, gt=0, description="seconds per request to the Hub")
    attempts: int = Field(4, ge=1, le=20, description="attempts per request to the Hub")


class DockerSettings(Settings):
    """Deployment as a container of a local engine."""

    image: str = Field("rlm-env", description="name of the image")
    build_s: float = Field(1800.0, gt=0, description="maximum seconds of the build")
    memory_mb: int = Field(4096, ge=512, description="MB of the container, without swap")


class DeploySettings(Settings):
    """Deployment of the environment."""

    target: Literal["local", "space", "docker"] = "local"
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65535, description="0 selects a free port")
    wait_s: float = Field(120.0, gt=0, description="seconds to wait until healthy")
    space: SpaceSettings = SpaceSettings()
    docker: DockerSettings = DockerSettings()


class WarmstartSettings(Settings):
    """The training of the base model."""

    kind: Literal["nano", "sft", "champion", "none"] = Field(
        "nano",
        description="sft: model.source with an adapter, trained on demonstrations; champion: the "
        "registered model; none: model.source as it is",
    )
    version: str | None = Field(
        None,
        pattern=r"^\d+$",
        description="registered version for `champion`; null: the alias (DVC does not detect its "
        "changes, so `rlm/retrain` sets the version)",
    )
    weights_hash: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{16}$",
        description="tag that the version must have, to detect another registry",
    )
    nano: NanoSettings = NanoSettings()
    sft: SftSettings = SftSettings()


class GateSettings(Settings):
    """Zero-shot reward gate."""

    episodes: int = Field(10, ge=1, description="episodes per level")
    max_episodes: int = Field(60, ge=1, description="maximum per level while all are 0")
    baseline_episodes: int = Field(32, ge=20, description="episodes per level of the baseline")
    generation: GenerationSettings = GenerationSettings(batch_frames=256)
    seed: int = Field(0, ge=0)


class ExportSettings(Settings):
    """Merged 16-bit model and its checks."""

    dtype: Literal["float16", "bfloat16"] = "float16"
    max_logit_error: float | None = Field(
        None, gt=0, description="largest relative error; null: by the number format"
    )
    prompts: int = Field(20, ge=1, description="prompts whose completions are compared")
    seed: int = Field(0, ge=0)


class EvaluateSettings(Settings):
    """Comparison before and after training on the same problems and seeds."""

    episodes: int = Field(240, ge=20)
    bootstrap: int = Field(10_000, ge=100, description="bootstrap resamples")
    sampling_seeds: int = Field(1, ge=1, description="sampled episodes per problem")
    latency_episodes: int = Field(20, ge=1, description="episodes played alone, for latency")
    other_episodes: int = Field(
        60, ge=1, description="episodes of each level that the training does not play"
    )
    transcripts: int = Field(6, ge=1, description="episodes kept per difficulty and model")
    generation: GenerationSettings = GenerationSettings(batch_frames=256)
    seed: int = Field(0, ge=0)


class PlotsSettings(Settings):
    """Plots and report."""

    smooth: int = Field(5, ge=1, description="steps of the moving average")
    dpi: int = Field(120, ge=50, le=600)
    transcripts: int = Field(3, ge=1, description="before/after pairs in the report")


class RegisterSettings(Settings):
    """MLflow registry."""

    model_name: str = "rlm"


class RetrainSettings(Settings):
    """Deployment `rlm/retrain`: training on fresh data, from the champion."""

    seed: str = Field(
        "%Y%m%d",
        description="strftime format (UTC) that makes prepare.synthetic.seed from the date",
    )
    start: Literal["champion", "profile"] = Field(
        "champion", description="profile: the warm start of the profile"
    )
    wait_s: float = Field(3600.0, ge=0, description="seconds to wait for another run")

    @model_validator(mode="after")
    def _gives_a_number(self) -> RetrainSettings:
        if not datetime(2026, 1, 2, tzinfo=UTC).strftime(self.seed).isdigit():
            raise ValueError(f"seed: {self.seed!r} must give digits, such as %Y%m%d")
        return self


class EvaluateModelSettings(Settings):
    """Deployment `rlm/evaluate`: requests to an endpoint, and their prices."""

    concurrency: int = Field(16, ge=1, le=256, description="concurrent requests")
    sampling: Literal["full", "openai"] = Field(
        "full", description="fields of a request; openai: only temperature and top_p"
    )
    template_kwargs: TemplateArguments = Field(
        {}, description="arguments of the server's chat template, sent as chat_template_kwargs"
    )
    timeout_s: float = Field(120.0, gt=0, description="seconds per request")
    prompt_price: float = Field(0.0, ge=0, description="price of a million prompt tokens")
    completion_price: float = Field(0.0, ge=0, description="price of a million output tokens")


class PromoteSettings(Settings):
    """Rule by which the challenger replaces the champion."""

    mode: Literal["greedy", "sampled"] = Field(
        "greedy", description="decoding of both models, also of a served model"
    )
    problems: int = Field(
        216, ge=LEAST_PROBLEMS, description="problems in each of the two fresh sets"
    )
    level: float = Field(0.99, ge=0.9, lt=1, description="confidence level")
    bootstrap: int = Field(10_000, ge=1000, description="bootstrap resamples")


class TrackingSettings(Settings):
    """MLflow runs."""

    experiment: str = "rlm"
    traces: int = Field(
        2,
        ge=0,
        le=50,
        description="traced episodes per train.table_every steps, and in evaluate per difficulty "
        "and model; 0: none",
    )
    system_s: float = Field(5.0, ge=0, description="seconds between system metrics; 0: none")


class PushSettings(Settings):
    """DVC remote."""

    remote: str = "local"


class Params(Settings):
    """All settings of a pipeline run."""

    profile: str = "nano"
    threads: int = Field(
        2, ge=1, le=256, description="CPU threads of torch; leave a core for the environment"
    )
    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    prepare: PrepareSettings = PrepareSettings()
    validate_: ValidateSettings = Field(ValidateSettings(), alias="validate")
    deploy: DeploySettings = DeploySettings()
    audit: AuditSettings = AuditSettings()
    model: ModelSettings = ModelSettings()
    warmstart: WarmstartSettings = WarmstartSettings()
    gate: GateSettings = GateSettings()
    engine: EngineSettings = EngineSettings()
    train: TrainSettings = TrainSettings()
    export: ExportSettings = ExportSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    plots: PlotsSettings = PlotsSettings()
    register_: RegisterSettings = Field(RegisterSettings(), alias="register")
    promote: PromoteSettings = PromoteSettings()
    push: PushSettings = PushSettings()
    retrain: RetrainSettings = RetrainSettings()
    evaluate_model: EvaluateModelSettings = EvaluateModelSettings()
    tracking: TrackingSettings = TrackingSettings()

    @property
    def serving(self) -> GenerationSettings:
        """Decoding of a served model and of promotion, as `promote.mode` says."""
        if self.promote.mode == "greedy":
            return self.evaluate.generation.greedy
        return self.evaluate.generation

    @model_validator(mode="after")
    def _fits_together(self) -> Params:
        levels = self.prepare.levels_of("train")
        for level in self.train.curriculum.levels:
            if level not in levels:
                raise ValueError(f"train.curriculum.levels: {level!r} is not in {levels}")
        if self.train.curriculum.target not in self.train.curriculum.levels:
            raise ValueError("train.curriculum.target must be one of train.curriculum.levels")
        self._model_fits()
        if self.engine.kind == "vllm" and self.train.method != "lora":
            raise ValueError(
                f"engine.kind vllm: train.method {self.train.method} is not supported (the engine "
                "gets adapters). Set train.method: lora."
            )
        if self.prepare.source != "synthetic" or self.prepare.synthetic.world != "papers":
            # Other sources reject rows with too many gold papers; readers of `fields` take turns.
            return self
        most = max(level.max_gold for level in self.prepare.synthetic.levels.values())
        if self.env.limits.max_children < most:
            raise ValueError(
                f"env.limits.max_children {self.env.limits.max_children} is below the "
                f"{most} gold papers a problem may need (prepare.synthetic.levels)"
            )
        return self

    def _model_fits(self) -> None:
        """Refuse a base model that the warm start or the training cannot use."""
        if self.warmstart.kind == "sft" and self.model.source == NANO:
            raise ValueError(
                "warmstart.kind: sft teaches another model than nano. Set model.source, or kind: "
                "nano."
            )
        if self.warmstart.kind == "sft" and self.train.method == "full":
            raise ValueError("train.method: full cannot train the adapter of sft. Set lora.")
        if self.model.source != NANO and self.warmstart.kind == "nano":
            raise ValueError(
                f"warmstart.kind: nano is not {self.model.source}. Set none, sft, or "
                "model.source=nano."
            )
        if self.model.quantisation == "none":
            return
        if self.train.method == "full":
            raise ValueError(
                "train.method: full cannot train 4-bit weights. Set lora, or "
                "model.quantisation=none."
            )
        if self.model.source == NANO and self.warmstart.kind != "champion":
            raise ValueError("model.quantisation: nano has no 4-bit weights. Set none.")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: the file is missing or does not contain a YAML mapping.
    """
    try:
        # LibYAML reads params.yaml in a tenth of the time.
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist. Run from the project's root.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must contain sections (found {type(data).__name__})")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `base` replaced by those of `over`; nested mappings are merged."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        merged[key] = value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """Nested mapping of an override such as `train.steps=3`; the value is YAML.

    Raises:
        ConfigError: `=` is missing, or the value is not valid YAML.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {text!r} has no key or no `=`. Write section.key=value.")
    try:
        nested: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: the value is not valid YAML: {error}") from None
    for key in reversed(path.strip().split(".")):
        nested = {key: nested}
    return dict(nested)


def check(data: Mapping[str, Any], source: str) -> Params:
    """Validate plain data; `source` names its origin in messages.

    Raises:
        ConfigError: keys are unknown or values are invalid; the message has a line per key.
    """
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        lines = [f"{source}: {_describe(item)}" for item in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def _dotted(place: Sequence[int | str]) -> str:
    return ".".join(map(str, place))


def _describe(error: ErrorDetails) -> str:
    """Key and fault of a validation error; the new name of a renamed key."""
    key = _dotted(error["loc"]) or "(whole file)"
    if error["type"] != "extra_forbidden":
        shown = error["type"] not in ("value_error", "missing")
        return f"{key}: {error['msg']}" + (f" (found {error['input']!r})" if shown else "")
    if key in RENAMED:
        return f"{key}: renamed to {RENAMED[key]}"
    return (
        f"{key}: removed ({REMOVED[key]}). Delete it." if key in REMOVED else f"{key}: unknown key"
    )


def resolve(profile: str = "nano", overrides: Sequence[str] = ()) -> Params:
    """Settings of params.yaml, changed by a profile (nano: none), then by `section.key=value`s.

    Raises:
        ConfigError: a file is missing or invalid, or a setting is wrong.
    """
    data = read_yaml(PARAMS)
    source = str(PARAMS)
    if profile != data.get("profile", "nano"):
        over = _read_profile(profile)
        source += f" + {PROFILES / profile}.yaml"
        if extended := over.pop("extends", None):
            over = merge(_read_profile(str(extended)), over)
        data = merge(merge(data, over), {"profile": profile})
    for text in overrides:
        data = merge(data, parse_override(text))
        source += f" + {text}"
    return check(data, source)


def _read_profile(name: str) -> dict[str, Any]:
    path = PROFILES / f"{name}.yaml"
    if not path.exists():
        known = sorted(p.stem for p in PROFILES.glob("*.yaml"))
        raise ConfigError(f"{path} does not exist. Use a profile of {['nano', *known]}.")
    return read_yaml(path)


def write_resolved(params: Params) -> Path:
    """Write the settings in force, unless the file has them already; returns its path.

    The section `derived` is for dvc.yaml and is not read back.
    """
    data = params.model_dump(by_alias=True, mode="json")
    text = yaml.safe_dump({**data, "derived": derive(params)}, sort_keys=False)
    if not RESOLVED.exists() or RESOLVED.read_text(encoding="utf-8") != text:
        write_text(RESOLVED, text)
    return RESOLVED


def derive(params: Params) -> dict[str, str]:
    """Paths in dvc.yaml that depend on the settings.

    DVC requires every dependency to exist. Where a source reads no file, the module that would
    read it takes its place, because `prepare` depends on it anyway.
    """
    source, problems, documents = params.model.source, None, None
    if params.prepare.source == "files":
        problems, documents = params.prepare.files.path, params.prepare.files.documents
    elif params.prepare.source == "hub":
        problems = params.prepare.hub.name
    return {
        "model": _existing(source if source not in (MADE, NANO) else None) or "tasks/warmstart.py",
        "template": _existing(params.model.template) or "agent/policies/baked_template.py",
        **{name: path if source == MADE else "tasks/warmstart.py" for name, path in TAUGHT.items()},
        "trained": "models/adapter" if params.train.method == "lora" else "models/policy",
        "problems": _existing(problems) or "tasks/data/tables.py",
        "documents": _existing(documents) or "tasks/data/documents.py",
        "trained_before": _existing(params.prepare.splits.trained) or "tasks/data/splits.py",
        **_of_demonstrations(params),
    }


def _of_demonstrations(params: Params) -> dict[str, str]:
    """Inputs of `warmstart.kind: sft`, and a digest of the settings of its episodes.

    Other kinds depend on neither, so that changed problems do not teach nano again.
    """
    sft = params.warmstart.kind == "sft"
    train = params.train.model_dump(
        include={"lora", "generation", "micro_batch_tokens", "gradient_checkpointing"}
    )
    settings = [params.env.model_dump(), params.rewards.model_dump(), train]
    settings.append({"levels": params.train.curriculum.levels})
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return {
        **{name: path if sft else "tasks/warmstart.py" for name, path in DEMONSTRATED.items()},
        "sft_settings": digest[:16] if sft else "",
    }


def _existing(path: str | None) -> str | None:
    # The stage reports a missing file with a better message than DVC.
    return path if path is not None and Path(path).exists() else None


def read_resolved(path: Path) -> Params:
    """Settings that this or an earlier version of the code wrote with `write_resolved`.

    Raises:
        ConfigError: the file is missing or does not fit this version of the code.
    """
    data = read_yaml(path)
    data.pop("derived", None)
    return check(_translate(data), str(path))


def _translate(data: dict[str, Any]) -> dict[str, Any]:
    """Settings with renamed keys moved and removed keys dropped."""
    try:
        Params.model_validate(data)
    except ValidationError as error:
        for item in error.errors():
            *parents, last = item["loc"]
            old = _dotted(item["loc"])
            if item["type"] != "extra_forbidden" or old not in RENAMED | REMOVED:
                continue
            section: Any = data
            for part in parents:
                section = section[part]
            value = section.pop(last)
            if old in RENAMED:
                for key in reversed(RENAMED[old].split(".")):
                    value = {key: value}
                data = merge(data, value)
    return data


def load_resolved() -> Params:
    """Settings in force for the stages; resolved from params.yaml if the file is missing."""
    if not RESOLVED.exists():
        write_resolved(resolve())
    return read_resolved(RESOLVED)
