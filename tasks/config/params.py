"""All settings of a run: composes the sections, and refuses those that do not fit together."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from agent.settings import NANO, GenerationSettings, ModelSettings, TrainSettings
from env.settings import CAPACITY, EnvSettings, Settings
from rewards.settings import RewardSettings
from tasks.config import settings


class Params(Settings):
    """All settings of a pipeline run."""

    profile: str = "nano"
    overrides: list[str] = Field([], exclude=True)
    """Values of `--set`; set by resolve."""
    threads: int = Field(2, ge=1, le=256)
    """CPU threads of torch; leave a core for the environment."""
    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    prepare: settings.PrepareSettings = settings.PrepareSettings()
    validate_: settings.ValidateSettings = Field(settings.ValidateSettings(), alias="validate")
    deploy: settings.DeploySettings = settings.DeploySettings()
    audit: settings.AuditSettings = settings.AuditSettings()
    model: ModelSettings = ModelSettings()
    generation: GenerationSettings = GenerationSettings()
    warmstart: settings.WarmstartSettings = settings.WarmstartSettings()
    gate: settings.GateSettings = settings.GateSettings()
    train: TrainSettings = TrainSettings()
    export: settings.ExportSettings = settings.ExportSettings()
    evaluate: settings.EvaluateSettings = settings.EvaluateSettings()
    register_: settings.RegisterSettings = Field(settings.RegisterSettings(), alias="register")
    promote: settings.PromoteSettings = settings.PromoteSettings()
    push: settings.PushSettings = settings.PushSettings()
    retrain: settings.RetrainSettings = settings.RetrainSettings()
    evaluate_model: settings.EvaluateModelSettings = settings.EvaluateModelSettings()

    def of_episodes(self) -> dict[str, Any]:
        """The sections that decide an episode's course and reward, without what only its cost."""
        return self.model_dump(
            mode="json",
            include={"generation", "env", "rewards"},
            exclude={"generation": GenerationSettings.SIZES, "env": CAPACITY},
        )

    @property
    def serving(self) -> GenerationSettings:
        """Decoding of a served model and of promotion, as `promote.mode` says."""
        return self.generation.greedy if self.promote.mode == "greedy" else self.generation

    @model_validator(mode="after")
    def _fits_together(self) -> Params:
        levels = self.prepare.levels
        for level in self.train.curriculum.levels:
            if level not in levels:
                raise ValueError(f"train.curriculum.levels: {level!r} is not in {levels}")
        if self.train.curriculum.target not in self.train.curriculum.levels:
            raise ValueError("train.curriculum.target must be one of train.curriculum.levels")
        self._model_fits()
        return self

    def _model_fits(self) -> None:
        """Refuse a base model that the warm start or the training cannot use."""
        demonstrates, kind = self.warmstart.may_demonstrate, self.warmstart.kind
        if demonstrates and self.model.source == NANO:
            raise ValueError(
                f"warmstart.kind: {kind} teaches another model than nano. Set model.source, or "
                "kind: nano."
            )
        if self.model.source != NANO and self.warmstart.kind == "nano":
            raise ValueError(
                f"warmstart.kind: nano is not {self.model.source}. Set auto, none, sft, or "
                "model.source=nano."
            )
        bare = self.model.source == NANO and self.warmstart.kind != "champion"
        if bare and self.model.quantisation != "none":
            raise ValueError("model.quantisation: nano has no 4-bit weights. Set none.")
