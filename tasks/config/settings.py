"""Settings of the stages and of deployments: a section of params.yaml each.

The packages `env`, `rewards` and `agent` and the sources in `tasks/data` have `settings` modules of
their own. `tasks/config/params.py` composes all sections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, get_args

from pydantic import Field

from agent.nano.sizes import NanoSettings
from agent.settings import LEAST_PROBLEMS, SftSettings, TemplateArguments
from env.problems.fields import SyntheticSettings
from env.problems.schema import Level
from env.settings import Settings
from tasks.data.settings import FilesSettings, SplitSettings

HubName = Annotated[str, Field(pattern=r"^([\w.-]+/)?[\w.-]+$")]


class PrepareSettings(Settings):
    """Source of the problems."""

    source: Literal["synthetic", "files"] = "synthetic"
    synthetic: SyntheticSettings = SyntheticSettings()
    files: FilesSettings = FilesSettings()
    splits: SplitSettings = SplitSettings()

    @property
    def levels(self) -> list[str]:
        """Difficulties of the source, sorted."""
        if self.source == "synthetic":
            return sorted(self.synthetic.levels)
        return sorted(get_args(Level))


class ValidateSettings(Settings):
    """Limits of the checks on the data."""

    min_rows: int = Field(20, ge=1)
    """Minimum rows per split."""
    difficulty_share: float = Field(0.1, ge=0, le=1)
    """Minimum share of each difficulty."""

    def lack(self, difficulties: Iterable[str], named: Sequence[str]) -> str | None:
        """What a split lacks, with the settings that require it; None if nothing.

        Args:
            difficulties: of its rows.
            named: difficulties that it should have.
        """
        lacks, levels = [], Counter(difficulties)
        if (rows := levels.total()) < self.min_rows:
            lacks.append(f"rows {rows} (validate.min_rows {self.min_rows})")
        few = [f"{at} {levels[at]}" for at in named if levels[at] < self.difficulty_share * rows]
        if few:
            lacks.append(f"{', '.join(few)} (validate.difficulty_share {self.difficulty_share:g})")
        return ", ".join(lacks) or None


class AuditSettings(Settings):
    """Episodes of policies without a model, to check the problems."""

    problems: int = Field(50, ge=1)
    """Problems per difficulty."""


class SpaceSettings(Settings):
    """Deployment as a Space on the Hub. The token is not a setting."""

    name: HubName = "rlm"
    """OWNER/NAME, or NAME in the account of the token."""
    private: bool = True
    """Only accounts with read access can use it."""
    problems: Literal["seed", "dataset"] = "seed"
    """Generate from a secret seed, or load a private data set."""
    dataset: HubName = "rlm-problems"
    """Private data set, named like the Space."""
    variables: dict[str, str] = {}
    """Public environment variables."""
    secrets: list[str] = []
    """Environment variables of this machine to copy as secrets."""


class DockerSettings(Settings):
    """Deployment as a container of a local engine."""

    memory_mb: int = Field(4096, ge=512)
    """MB of the container, without swap."""


class DeploySettings(Settings):
    """Deployment of the environment."""

    target: Literal["local", "space", "docker"] = "local"
    space: SpaceSettings = SpaceSettings()
    docker: DockerSettings = DockerSettings()


class NanoStartSettings(Settings):
    """Warm start of nano; `agent/nano/sizes.py` has its sizes and rates."""

    steps: int = Field(NanoSettings.steps, ge=1)
    """Most optimizer steps."""
    seed: int = Field(NanoSettings.seed, ge=0)


class WarmstartSettings(Settings):
    """The training of the base model."""

    kind: Literal["nano", "sft", "auto", "champion", "none"] = "nano"
    """`sft`: model.source with an adapter, trained on demonstrations; `none`: as it is; `auto`:
    `none` if it earns enough in the stage zeroshot, else `sft`; `champion`: the registered model.
    """
    version: str | None = Field(None, pattern=r"^\d+$")
    """Registered version for `champion`; null: the alias (DVC does not detect its changes, so
    `rlm/retrain` sets the version).
    """
    weights_hash: str | None = Field(None, pattern="^[0-9a-f]{16}$")
    """Tag that the version must have, to detect another registry."""
    nano: NanoStartSettings = NanoStartSettings()
    sft: SftSettings = SftSettings()

    @property
    def may_demonstrate(self) -> bool:
        """Whether the base may learn from demonstrations of the problems."""
        return self.kind in ("sft", "auto")


class GateSettings(Settings):
    """Episodes of the base that decide whether GRPO can train it."""

    baseline_episodes: int = Field(32, ge=20)
    """Episodes per level of the baseline."""


class ExportSettings(Settings):
    """Merged 16-bit model and its checks."""

    dtype: Literal["float16", "bfloat16"] = "float16"
    max_logit_error: float | None = Field(None, gt=0)
    """Largest relative error; null: by the number format."""
    prompts: int = Field(20, ge=1)
    """Prompts whose completions are compared."""


class EvaluateSettings(Settings):
    """Comparison before and after training on the same problems and seeds."""

    episodes: int = Field(240, ge=20)
    split: Literal["validation", "test"] = "test"
    """Problems that are played, by `rlm evaluate` too."""
    bootstrap: int = Field(10_000, ge=100)
    """Bootstrap resamples."""
    latency_episodes: int = Field(20, ge=1)
    """Episodes played alone, for latency."""


class RegisterSettings(Settings):
    """MLflow registry."""

    model_name: str = "rlm"


class RetrainSettings(Settings):
    """Deployment `rlm/retrain`: training on fresh data, from the champion."""

    start: Literal["champion", "profile"] = "champion"
    """`profile`: the warm start of the profile."""
    wait_s: float = Field(3600.0, ge=0)
    """Seconds to wait for another run."""


class EvaluateModelSettings(Settings):
    """`rlm evaluate --model`: requests to an endpoint, and their prices."""

    concurrency: int = Field(16, ge=1, le=256)
    """Concurrent requests."""
    sampling: Literal["full", "openai"] = "full"
    """Fields of a request; openai: only temperature and top_p."""
    template_kwargs: TemplateArguments = {}
    """Arguments of the server's chat template, sent as chat_template_kwargs."""
    prompt_price: float = Field(0.0, ge=0)
    """Price of a million prompt tokens."""
    completion_price: float = Field(0.0, ge=0)
    """Price of a million output tokens."""


class PromoteSettings(Settings):
    """Rule by which the challenger replaces the champion."""

    mode: Literal["greedy", "sampled"] = "greedy"
    """Decoding of both models, also of a served model."""
    problems: int = Field(216, ge=LEAST_PROBLEMS)
    """Problems in each of the two fresh sets."""
    level: float = Field(0.99, ge=0.9, lt=1)
    """Confidence level."""


class PushSettings(Settings):
    """DVC remote."""

    remote: str = "local"
