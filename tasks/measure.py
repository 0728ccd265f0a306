"""One model by itself in the harness of `evaluate`: registered, in a folder, or at an endpoint.

The same problems, seeds, environment and figures as the stage `evaluate`, so that its reports can
be laid beside each other. No stage of the chain. Writes reports/measured/NAME.json and an MLflow
run of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent import evaluation
from agent.errors import PolicyError
from agent.settings import GenerationSettings
from agent.statistics import Bootstrap
from env.errors import EpisodeError
from tasks import evaluate, inherit, lineage, register, tracking
from tasks.config import MeasureSettings, Params
from tasks.errors import ConfigError, StageError
from tasks.outputs import write_json

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from agent.endpoint import EndpointPolicy, Usage
    from agent.evaluation import Row
    from tasks.evaluate import Model
    from tasks.tracking import StageRun

REPORTS = Path("reports/measured")
MOST_VOID = 0.05
"""Share of the episodes in each mode that may be void. They are not void by chance, as the longest
ones are lost first, and shift a mean of scores in [0, 1] by this share at most: at 240 episodes
about the half of its interval. The stage `evaluate` allows more, since it compares pairs that were
both played."""
PATIENCE_S = 7 * 86_400.0
"""Longer than any round of turns. The server ends with the run: nobody's session is left behind."""
_URI = re.compile(r"models:/(?P<name>[^/@]+)(/(?P<version>\d+)|@(?P<alias>.+))")


class Asked:
    """A model behind an OpenAI-compatible endpoint, and what all its policies cost together."""

    def __init__(self, base_url: str, model: str, settings: MeasureSettings) -> None:
        self.base_url, self.model, self.settings = base_url, model, settings
        self._policies: list[EndpointPolicy] = []

    def __call__(self, generation: GenerationSettings) -> EndpointPolicy:
        """A policy that decodes as `generation` says."""
        from agent.endpoint import EndpointPolicy

        policy = EndpointPolicy(
            self.base_url,
            self.model,
            generation,
            concurrency=self.settings.concurrency,
            timeout_s=self.settings.timeout_s,
        )
        self._policies.append(policy)
        return policy

    def check(self, generation: GenerationSettings) -> None:
        """Ask once greedily and once as sampled, before anything is played.

        Raises:
            PolicyError: the endpoint refuses, or gives no answer.
        """
        for temperature in (0.0, generation.temperature):
            self(generation.model_copy(update={"temperature": temperature})).check()

    @property
    def usage(self) -> Usage:
        """Requests and tokens so far."""
        from agent.endpoint import Usage

        of_all = [vars(policy.usage) for policy in self._policies]
        return Usage(**{key: sum(usage[key] for usage in of_all) for key in vars(Usage())})

    @property
    def trouble(self) -> str:
        """Why the last turn that was lost was lost; empty if none was."""
        return next((policy.trouble for policy in self._policies[::-1] if policy.trouble), "")

    def close(self) -> None:
        """Close the connections."""
        for policy in self._policies:
            policy.close()


def measure(params: Params, run: StageRun, model: str, base_url: str | None = None) -> Path:
    """Play the test problems with one model; returns the report's path.

    Args:
        params: the settings in force; `evaluate` says how many episodes, `measure` what they cost.
        run: the MLflow run that gets the figures.
        model: `models:/NAME/VERSION`, `models:/NAME@ALIAS`, a folder, or the endpoint's name.
        base_url: address of the endpoint; None for a model of ours.

    Raises:
        ConfigError: `model` names nothing.
        StageError: the data is missing, the model cannot be read, the endpoint refuses, or too
            many episodes are void.
    """
    import torch

    from tasks.deploy import environment

    torch.set_num_threads(params.threads)
    settings = params.evaluate
    specs = evaluate.choose(evaluate.TEST, settings.episodes, settings.seed)
    # A round lasts until every ready frame has its turn, and whoever waits for it is idle.
    abreast = params.measure.concurrency if base_url else settings.generation.batch_frames
    sessions = min(len(specs), params.env.max_sessions, abreast)
    asked = Asked(base_url, model, params.measure) if base_url else None
    subject: Model = asked or folder_of(model)
    try:
        if asked:
            asked.check(settings.generation)
        with environment(patient(params)) as url:
            played = evaluate.play_modes(
                subject, url, specs, settings, sessions=sessions, label=model
            )
            alone = evaluate.play_alone(subject, url, specs, settings, label=model)
    except (EpisodeError, PolicyError) as error:
        raise StageError(f"evaluate: {error}") from error
    finally:
        if asked:
            asked.close()
    rows = [
        evaluation.episode_row(episode, model, mode, number, params.rewards.success_at)
        for (mode, number), episodes in played.items()
        for episode in episodes
    ]
    require_nearly_all(rows, model, asked)
    seconds = evaluate.seconds_of(alone)
    told = evaluation.describe(rows, seconds, Bootstrap(settings.bootstrap, settings.seed))
    report = {
        "model": model,
        "base_url": base_url,
        "n": len(specs),
        "seed": settings.seed,
        "data_hash": lineage.data_hash(),
        "cost": cost(asked, len(rows) + len(alone), params.measure),
        **told,
    }
    run.log_metrics(figures(report))
    path = write_json(REPORTS / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', model).strip('-')}.json", report)
    run.log_artifact(path)
    return path


def patient(params: Params) -> Params:
    """The settings with an environment that ends no session of a slow model as idle.

    Not a Space, which outlives the run and would be built anew for another setting.
    """
    if params.deploy.target == "space":
        return params
    idle = max(params.env.idle_timeout_s, PATIENCE_S)
    return params.model_copy(update={"env": params.env.model_copy(update={"idle_timeout_s": idle})})


def require_nearly_all(rows: Sequence[Row], model: str, asked: Asked | None) -> None:
    """Warn of void episodes.

    Raises:
        StageError: they are more than `MOST_VOID` in a mode, so that the rest is another, easier
            choice of the problems.
    """
    remedy = "look at the environment's log, then run again"
    if asked:
        remedy = (
            "run again with a lower measure.concurrency or a greater measure.timeout_s, or, where "
            "sessions were idle for too long, a greater env.idle_timeout_s of that server"
        )
    words = f"; the endpoint's last words: {asked.trouble}" if asked and asked.trouble else ""
    for mode in ("greedy", "sampled"):
        of_mode = [row for row in rows if row["mode"] == mode]
        voids = [row["void"] for row in of_mode if row["void"] is not None]
        if len(voids) > MOST_VOID * len(of_mode):
            raise StageError(
                f"evaluate: {len(voids)} of {len(of_mode)} {mode} episodes of {model} are void, "
                f"more than {MOST_VOID:.0%}, so nothing is reported; the first: {voids[0]}"
                f"{words}; {remedy}"
            )
    evaluate.require_played(rows, model)


def folder_of(model: str) -> Path:
    """The folder of a registered model, or the one that is named.

    Raises:
        ConfigError: it is neither.
        StageError: the registry does not have the version, or its weights are gone.
    """
    if (Path(model) / "config.json").is_file():
        return Path(model)
    named = _URI.fullmatch(model)
    if named is None:
        raise ConfigError(
            f"evaluate: {model!r} is no folder of a model; write models:/NAME/VERSION, "
            "models:/NAME@ALIAS, or give base_url for a model behind an endpoint"
        )
    return register.download(version_of(named["name"], named["version"], named["alias"]))


def version_of(name: str, version: str | None, alias: str | None) -> ModelVersion:
    """A version by number or by alias.

    Raises:
        StageError: the registry does not have it.
    """
    if version is not None:
        return inherit.by_number(name, version)
    found = register.by_alias(name, str(alias))
    if found is None:
        raise StageError(f"evaluate: the registry has no version of {name!r} with alias {alias!r}")
    return found


def cost(asked: Asked | None, episodes: int, settings: MeasureSettings) -> dict[str, Any] | None:
    """What an endpoint was asked for and what that costs; None for a model of ours."""
    if asked is None:
        return None
    usage = asked.usage
    total = usage.cost(settings.prompt_price, settings.completion_price)
    return {**vars(usage), "episodes": episodes, "total": total, "per_episode": total / episodes}


def figures(report: Mapping[str, Any]) -> dict[str, float]:
    """The columns of every run that measured a model, plus what an endpoint cost."""
    found = tracking.result_metrics(report)
    if (paid := report["cost"]) is not None:
        tokens = paid["prompt_tokens"] + paid["completion_tokens"]
        found |= {
            "result/tokens_per_episode": tokens / paid["episodes"],
            "result/cost_per_episode": paid["per_episode"],
            "result/failed_requests": paid["failures"],
        }
    return found
