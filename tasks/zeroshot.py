"""Stage `zeroshot`: play the bare model ten times, before demonstrations are paid for.

The bare model is what demonstrations start from: `model.source`, or nano with random weights. Its
figures say whether it needs them: the gate's rule decides on these episodes alone. With
`warmstart.kind: auto`, a bare model that passes goes straight to GRPO, and another one learns from
demonstrations first. Nothing is refused here, because the gate plays the base next and judges it.

Ten problems of the easiest level are played, the first that the gate plays, with the same seeds.
Writes reports/zeroshot.json.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.rollouts.trajectory import Trajectory
from agent.settings import NANO
from tasks import gate, paths, warmstart
from tasks.config.params import Params
from tasks.errors import StageError, as_stage_error
from tasks.io import write_json
from tasks.registry import base_sources
from tasks.reporting import progress
from tasks.reporting.playing import play_shown
from tasks.tracking.runs import StageRun
from tasks.training.problem_data import unseen

EPISODES = 10
NOT_PLAYED = {
    "none": "no demonstrations follow: the gate plays the bare model and decides",
    "champion": "the base is a registered champion, so there is no bare model",
}
"""Kinds of warm start without zero-shot episodes, and why."""


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Play the bare model if demonstrations follow; returns the report's path.

    Raises:
        ConfigError: the demonstrations that follow do not support a setting.
        StageError: model or data is missing, or most episodes are void.
    """
    kind = params.warmstart.kind
    paths.ZERO_SHOT.unlink(missing_ok=True)  # a verdict on another model
    report: dict[str, Any] = {"kind": kind, "played": kind not in NOT_PLAYED}
    if report["played"]:
        report |= describe(play_bare(params, run), params)
        report |= {"temperature": params.generation.temperature, "seed": gate.SEED}
        run.log_metrics(metrics(report))
    else:
        report["advice"] = NOT_PLAYED[kind]
    progress.say(report["advice"])
    run.set_tags({"zero_shot": report["advice"]})
    run.log_artifact(write_json(paths.ZERO_SHOT, report))
    return paths.ZERO_SHOT


def play_bare(params: Params, run: StageRun) -> list[Trajectory]:
    """Zero-shot episodes at the easiest level.

    Raises:
        StageError: the level has no problem.
    """
    import torch

    from agent.policies.hf_policy import TransformersPolicy
    from tasks.deployment.environment import environment

    level, generation = params.train.curriculum.levels[0], params.generation
    specs = unseen(gate.by_level(paths.TRAIN, gate.SEED), params).get(level, [])[:EPISODES]
    if not specs:
        raise StageError(f"{paths.TRAIN} has no problem of difficulty {level!r}")
    torch.set_num_threads(params.threads)
    policy = TransformersPolicy(*bare_model(params, run), generation)
    with environment(params) as url:
        sessions = min(params.env.max_sessions, generation.batch_frames)
        return play_shown(f"zero-shot, {level}", policy, url, specs, sessions=sessions)


def bare_model(params: Params, run: StageRun) -> tuple[Any, Any]:
    """Model and tokenizer before any demonstration; the stage `warmstart` gets their files.

    Raises:
        ConfigError: the demonstrations do not support a setting.
        PolicyError: the model cannot be read or adapted, or the disk has no room.
    """
    if params.model.source == NANO:
        from agent.nano.teaching import build

        warmstart.require_teachable(params)
        taught = build(warmstart.nano(params), warmstart.lessons(params))
        return taught.model.eval(), taught.tokenizer
    from agent.policies.hf_policy import load_model
    from tasks.training import demonstrate

    demonstrate.require_demonstrable(params)
    base_sources.forget_source()  # its files may be others now
    base_sources.write_source(params, run, paths.BARE)
    with progress.doing("load the model"):
        return load_model(paths.BARE)


def describe(episodes: Sequence[Trajectory], params: Params) -> dict[str, Any]:
    """Figures of the episodes, and whether the bare model can do without demonstrations.

    Raises:
        StageError: most episodes are void.
    """
    valid = gate.mostly_valid(episodes)
    figures = gate.figures(episodes, params.rewards)
    turns = sum(episode.counters.turns for episode in valid)
    auto, passed = params.warmstart.kind == "auto", gate.opens(episodes, params.rewards)
    if passed:
        next_ = "GRPO starts from it" if auto else "demonstrations may be unnecessary"
        verdict = f"the gate is open for the bare model, so {next_}"
    else:
        verdict = "the bare model earns too little, so demonstrations follow"
    return {
        "advice": f"{verdict} ({episodes[0].difficulty}: {gate.in_words(figures)})",
        "passed": passed,
        "level": episodes[0].difficulty,
        **figures,
        "error_rate": sum(episode.counters.errors for episode in valid) / max(1, turns),
        "stop_reasons": dict(Counter(str(episode.root.stop_reason) for episode in valid)),
    }


def metrics(report: dict[str, Any]) -> dict[str, float]:
    """The figures of a report for MLflow."""
    named = {
        "reward": report["reward_mean"],
        "f1": report["f1"],
        "earned": report["earned"],
        "error_rate": report["error_rate"],
        **report["components"],
        **{f"stop_{reason}": count for reason, count in report["stop_reasons"].items()},
    }
    return {f"zeroshot/{name}": float(value) for name, value in named.items()}
