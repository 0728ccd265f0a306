"""Evaluation of one model that is registered, in a folder, or behind an endpoint.

Problems, seeds, environment and figures are those of the stage `evaluate`, so reports are
comparable. `rlm evaluate --model` is the command. It writes reports/measured/NAME.json, the
episodes beside it, and its own MLflow run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.evaluation.report import describe
from agent.evaluation.statistics import Bootstrap
from agent.policies.endpoint import EndpointPolicy
from agent.settings import GenerationSettings
from tasks import evaluate, paths
from tasks.config.params import Params
from tasks.config.settings import EvaluateModelSettings
from tasks.errors import ConfigError, StageError, as_stage_error
from tasks.io import write_json
from tasks.registry import serving, versions
from tasks.reporting import progress
from tasks.tracking import lineage, runs

if TYPE_CHECKING:
    from agent.evaluation.report import EpisodeRow
    from agent.rollouts.trajectory import Trajectory
    from tasks.evaluate import Model
    from tasks.tracking.runs import StageRun

REPORTS = Path("reports/measured")
MOST_VOID = 0.05
"""Maximum share of void episodes in each mode. Long episodes are lost first, so voids bias a mean
of scores in [0, 1] by at most this share. That is about half of its interval at 240 episodes. The
stage `evaluate` allows more, because it compares pairs of episodes that were both played."""


def decoding(endpoint: EndpointPolicy, generation: GenerationSettings) -> EndpointPolicy:
    """The endpoint's policy with another decoding; connections and usage stay."""
    endpoint.settings = generation
    return endpoint


@as_stage_error()
def measure_model(
    params: Params,
    run: StageRun,
    model: str,
    base_url: str | None = None,
    say: Callable[[str], object] = print,
) -> Path:
    """Play the problems of `evaluate.split` with one model; returns the report's path.

    An endpoint plays the few episodes for the latency first, from which the cost of all follows.

    Args:
        params: settings in force; `evaluate` sets the episodes, `evaluate_model` the prices.
        run: MLflow run for the figures.
        model: `models:/NAME/VERSION`, `models:/NAME@ALIAS`, a folder, or the endpoint's model.
        base_url: address of the endpoint; None for a registered model or a folder.
        say: receives the estimate, and the result in one line.

    Raises:
        ConfigError: `model` is neither a folder nor a registered model.
        StageError: the data is missing, the model cannot be read, the endpoint refuses, or too
            many episodes are void.
    """
    import torch

    from tasks.deployment.environment import environment

    run.set_tags({"kind": "evaluate", "model": model})
    torch.set_num_threads(params.threads)
    settings = params.evaluate
    specs = evaluate.choose(paths.problems_of(settings.split), settings.episodes, evaluate.SEED)
    generation = params.generation
    # A round ends when every ready frame has had its turn; more sessions would only wait.
    concurrent = params.evaluate_model.concurrency if base_url else generation.batch_frames
    sessions = min(len(specs), params.env.max_sessions, concurrent)
    endpoint = serving.endpoint(params, base_url, model, generation) if base_url else None
    subject: Model = partial(decoding, endpoint) if endpoint else folder_of(model)
    with closing(endpoint) if endpoint else nullcontext():
        if endpoint:
            with progress.doing(f"waiting for {base_url}"):
                decoding(endpoint, generation.greedy).check()
                decoding(endpoint, generation).check()
        with progress.stage("evaluate"), environment(params) as url:
            alone = []
            if endpoint:
                alone = evaluate.play_alone(subject, url, specs, params, label=model)
                say(estimate(endpoint, alone, 2 * len(specs), sessions, params.evaluate_model))
            played = evaluate.play_modes(
                subject, url, specs, params, sessions=sessions, label=model
            )
            alone = alone or evaluate.play_alone(subject, url, specs, params, label=model)
    rows = evaluate.rows_of(played, model)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", model).strip("-")
    write_json(REPORTS / "episodes" / f"{name}.json", rows)  # paid for, whatever comes next
    require_nearly_all(rows, model, endpoint)
    bootstrap = Bootstrap(settings.bootstrap, evaluate.SEED)
    report = {
        "model": model,
        "base_url": base_url,
        "n": len(specs),
        "seed": evaluate.SEED,
        "data_hash": lineage.data_hash(),
        "cost": cost(endpoint, len(rows) + len(alone), params.evaluate_model),
        **describe(rows, evaluate.seconds_of(alone), bootstrap),
    }
    if paid := report["cost"]:  # an endpoint sends no token ids, but it counts
        report["tokens"] = {
            "sampled_per_episode": _each(paid["completion_tokens"], paid["episodes"]),
            "prompt_per_episode": _each(paid["prompt_tokens"], paid["episodes"]),
        }
    run.log_metrics(figures(report))
    path = write_json(REPORTS / f"{name}.json", report)
    run.log_artifact(path)
    say(headline(report, path))
    return path


def headline(report: Mapping[str, Any], path: Path) -> str:
    """A report in one line."""
    alone = report["latency"]["one_at_a_time"]
    price = (report["cost"] or {}).get("per_episode")
    paid = f", {price:.4f} per episode" if price else ""
    return (
        f"{report['model']}: F1 {_text(report['f1_greedy'])} greedy, "
        f"{_text(report['f1_sampled'])} sampled, reward {_text(report['reward_mean'])}, "
        f"p50 {_text(alone['p50_s'])} s, p95 {_text(alone['p95_s'])} s{paid} "
        f"({report['n']} problems; {path})"
    )


def _each(total: float | None, episodes: int) -> float | None:
    return None if total is None else total / episodes


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def require_nearly_all(
    rows: Sequence[EpisodeRow], model: str, endpoint: EndpointPolicy | None
) -> None:
    """Warn about void episodes.

    Raises:
        StageError: more than `MOST_VOID` of a mode are void.
    """
    fix = "Read the log of the environment, then run again."
    if endpoint:
        said = f"The endpoint said: {endpoint.trouble}. " if endpoint.trouble else ""
        fix = (
            f"{said}Lower evaluate_model.concurrency; if "
            "sessions were idle for too long, raise env.idle_timeout_s of that server."
        )
    for mode in ("greedy", "sampled"):
        of_mode = [row for row in rows if row["mode"] == mode]
        evaluate.require_played(of_mode, f"{model} ({mode})", MOST_VOID, fix)


def folder_of(model: str) -> Path:
    """Folder of a model, given as a folder or by its registry address.

    Raises:
        ConfigError: the name is neither.
        StageError: the registry does not have the version, or its weights are missing.
    """
    if (Path(model) / "config.json").is_file():
        return Path(model)
    address = versions.parse(model)
    if address is None:
        raise ConfigError(
            f"{model!r} is not a model folder. Write a folder, models:/NAME/VERSION or "
            "models:/NAME@ALIAS, or set base_url for a model behind an endpoint."
        )
    version = versions.find(*address)
    if version is None:
        raise StageError(f"the registry has no version {model}")
    return versions.download(version)


def estimate(
    endpoint: EndpointPolicy,
    alone: Sequence[Trajectory],
    episodes: int,
    sessions: int,
    settings: EvaluateModelSettings,
) -> str:
    """Expected tokens, time and cost of the episodes to come, in words.

    Args:
        endpoint: its usage is that of `alone`.
        alone: the episodes so far, played one at a time.
        episodes: number of episodes to come.
        sessions: episodes played at the same time.
        settings: the prices.
    """
    seconds = evaluate.seconds_of(alone)
    if not seconds:
        return f"{episodes} episodes follow; the first ones failed, so their cost is unknown."
    used, times = endpoint.usage, episodes / len(alone)
    least = sum(seconds) * times / sessions / 60
    total = used.cost(settings.prompt_price, settings.completion_price)
    price = f"about {total * times:,.4f}" if total else "unknown (evaluate_model.prompt_price is 0)"
    prompt, output = (f"{n * times:,.0f}" for n in (used.prompt_tokens, used.completion_tokens))
    tokens = f"about {prompt} prompt tokens and {output} output tokens"
    if not used.prompt_tokens:
        tokens, price = "tokens that the endpoint doesn't count", "unknown"
    return (
        f"{episodes} episodes follow, with {tokens}. They take at least {least:.0f} "
        f"min and cost {price}, as the first {len(alone)} episodes did on average."
    )


def cost(
    endpoint: EndpointPolicy | None, episodes: int, settings: EvaluateModelSettings
) -> dict[str, Any] | None:
    """Requests, tokens and cost of an endpoint, None if unknown; None without an endpoint."""
    if endpoint is None:
        return None
    usage = endpoint.usage
    total = usage.cost(settings.prompt_price, settings.completion_price)
    each = _each(total, episodes)
    return {**usage.told(), "episodes": episodes, "total": total, "per_episode": each}


def figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Columns by which runs are compared, with the cost of an endpoint."""
    metrics = runs.result_metrics(report)
    if (paid := report["cost"]) is not None:
        metrics["result/failed_requests"] = paid["failures"]
        if paid["total"] is not None:
            tokens = paid["prompt_tokens"] + paid["completion_tokens"]
            metrics["result/tokens_per_episode"] = tokens / paid["episodes"]
            metrics["result/cost_per_episode"] = paid["per_episode"]
    return metrics
