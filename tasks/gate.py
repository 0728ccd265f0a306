"""Stage `gate`: decide whether the base model can be trained, and measure the baseline.

GRPO learns from differences between episodes. If `primary_objective` is always 0, there is nothing
to learn, whatever the other components are. The gate plays a few zero-shot episodes at T = 1, at
the target difficulty and at the easiest, and more while all are 0. Ten episodes would refuse a
model with 5 % success in 60 % of cases, sixty in 5 %. The gate refuses only if both levels stay
at 0.

Writes reports/gate.json and, if the gate is open, reports/baseline.json.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agent.rollouts.specs import EpisodeSpec, read_specs
from agent.rollouts.trajectory import Trajectory
from tasks.errors import GateFailed, StageError, as_stage_error
from tasks.io import write_json
from tasks.params import Params
from tasks.settings import GateSettings

if TYPE_CHECKING:
    from tasks.tracking.runs import StageRun

DATA = Path("data/problems/train.parquet")
BASE = Path("models/base")
GATE = Path("reports/gate.json")
BASELINE = Path("reports/baseline.json")

PRIMARY = "primary_objective"

PlayLevel = Callable[[str, int, int], list[Trajectory]]
"""Function that plays the problems [start, stop) of a difficulty's shuffled list."""


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Play the base model, decide, and measure the baseline; returns the baseline's path.

    Raises:
        GateFailed: both levels stayed at 0; reports/gate.json has the same advice.
        StageError: the model or the data is missing, or most episodes are void.
    """
    import torch

    from agent.policies.hf_policy import TransformersPolicy, load_model
    from agent.rollouts.engine import play
    from tasks.deployment.environment import environment

    settings, curriculum = params.gate, params.train.curriculum
    specs = by_level(DATA, settings.seed)
    torch.set_num_threads(params.threads)
    policy = TransformersPolicy(*load_model(BASE), settings.generation)
    sessions = min(params.env.max_sessions, settings.generation.batch_frames)
    with environment(params) as url:

        def play_level(level: str, start: int, stop: int) -> list[Trajectory]:
            some = specs.get(level, [])[start:stop]
            if not some and start == 0:
                raise StageError(f"{DATA} has no problem of difficulty {level!r}")
            return play(policy, url, some, sessions=sessions)

        levels = tuple(dict.fromkeys((curriculum.target, curriculum.levels[0])))
        played = probe(play_level, levels, settings)
        report = decide(played, settings) | {"model": str(BASE), "seed": settings.seed}
        run.log_artifact(write_json(GATE, report))
        run.set_tags({"gate": "open" if report["passed"] else "refused"})
        if not report["passed"]:
            BASELINE.unlink(missing_ok=True)  # of an earlier model
            raise GateFailed(report["advice"])
        baseline = {
            level: play_level(level, 0, settings.baseline_episodes) for level in curriculum.levels
        }
    summary = summarise(baseline, params.rewards.success_at, settings)
    run.log_artifact(write_json(BASELINE, summary))
    for level, numbers in summary["levels"].items():
        scores = {"reward": numbers["reward_mean"], **numbers["components"]}
        run.log_metrics({f"baseline/{level}_{name}": value for name, value in scores.items()})
    return BASELINE


def by_level(path: Path, seed: int) -> dict[str, list[EpisodeSpec]]:
    """Training problems by difficulty, shuffled once, so that no problem is played twice.

    Raises:
        SettingsError: the data is missing.
    """
    specs = sorted(read_specs(path), key=lambda spec: spec.difficulty)
    random.Random(seed).shuffle(specs)
    levels: dict[str, list[EpisodeSpec]] = {}
    for number, spec in enumerate(specs):
        seeded = replace(spec, seed=seed * 1_000_003 + number)
        levels.setdefault(spec.difficulty, []).append(seeded)
    return levels


def probe(
    play_level: PlayLevel, levels: Sequence[str], settings: GateSettings
) -> dict[str, list[Trajectory]]:
    """Episodes by level: `episodes` of each; while all are 0, more, up to `max_episodes` each."""
    played = {level: play_level(level, 0, settings.episodes) for level in levels}
    for level in levels:
        while not any(map(earned, played.values())):
            start = len(played[level])
            stop = min(start + settings.episodes, settings.max_episodes)
            more = play_level(level, start, stop) if start < stop else []
            if not more:
                break
            played[level] += more
    return played


def earned(episodes: Sequence[Trajectory]) -> bool:
    """Whether the primary objective of any episode is above 0."""
    return any(primary(episode) > 0 for episode in episodes)


def primary(episode: Trajectory) -> float:
    """Primary objective of an episode; 0 if it is void."""
    return 0.0 if episode.void else episode.components.get(PRIMARY, 0.0)


def decide(played: dict[str, list[Trajectory]], settings: GateSettings) -> dict[str, Any]:
    """The gate's report: the decision, the figures of each level, and advice.

    Raises:
        StageError: most episodes are void, so no decision is possible.
    """
    every = [episode for episodes in played.values() for episode in episodes]
    valid = [episode for episode in every if episode.void is None]
    if 2 * len(valid) < len(every) or not valid:
        first = next(episode.void for episode in every if episode.void)
        raise StageError(
            f"{len(every) - len(valid)} of {len(every)} episodes are void ({first}). "
            "Read the log of the environment, then run the stage again."
        )
    passed = any(map(earned, played.values()))
    levels = {
        level: {
            "episodes": len(episodes),
            "void": sum(episode.void is not None for episode in episodes),
            "earned": sum(primary(episode) > 0 for episode in episodes),
            **means([episode for episode in episodes if episode.void is None]),
        }
        for level, episodes in played.items()
    }
    advice = "open: some episodes earn a primary objective" if passed else advise(valid, played)
    return {
        "passed": passed,
        "advice": advice,
        "temperature": settings.generation.temperature,
        "levels": levels,
    }


def advise(valid: Sequence[Trajectory], played: dict[str, list[Trajectory]]) -> str:
    """Likely reason why all episodes earned 0, and how to fix it."""
    counts = ", ".join(f"{len(episodes)} at {level}" for level, episodes in played.items())
    finding = f"primary_objective is 0 in all zero-shot episodes ({counts}): GRPO cannot learn. "
    ends = [episode.root.stop_reason for episode in valid]
    turns = sum(episode.counters.turns for episode in valid)
    malformed = sum(episode.counters.format_errors for episode in valid)
    if ends.count("truncated") > len(ends) / 2:
        return finding + (
            "Most roots were truncated: raise max_turn_tokens and max_frame_tokens in "
            "gate.generation and train.generation, or warm-start the model longer."
        )
    if malformed > turns / 2:
        return finding + (
            f"{malformed} of {turns} turns lack exactly one repl block: warm-start the model "
            "(warmstart.kind: nano, or more warmstart.nano.steps)."
        )
    if ends.count("final") < len(ends) / 2:
        return finding + (
            "Few roots gave an answer: warm-start the model longer, or raise env.limits.max_turns."
        )
    return finding + (
        "The answers contain no evidence: warm-start the model longer, use a stronger one, or make "
        "the easiest level easier (prepare.synthetic.levels)."
    )


def means(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Mean reward, components and F1 of valid episodes; None without episodes."""
    names = sorted({name for episode in episodes for name in episode.components})
    return {
        "reward_mean": fmean(e.reward or 0.0 for e in episodes) if episodes else None,
        "components": {
            name: fmean(episode.components.get(name, 0.0) for episode in episodes) for name in names
        },
        "f1": fmean(e.metrics.f1 if e.metrics else 0.0 for e in episodes) if episodes else None,
    }


def summarise(
    baseline: dict[str, list[Trajectory]], success_at: float, settings: GateSettings
) -> dict[str, Any]:
    """The baseline of each level, and its unweighted means over the levels.

    Raises:
        StageError: all episodes of a level are void.
    """
    valid = {level: [e for e in played if e.void is None] for level, played in baseline.items()}
    empty = [level for level, episodes in valid.items() if not episodes]
    if empty:
        raise StageError(f"all baseline episodes of {', '.join(empty)} are void")
    levels = {
        level: {
            "episodes": len(episodes),
            "void": len(baseline[level]) - len(episodes),
            "success_rate": fmean(episode.succeeded(success_at) for episode in episodes),
            **means(episodes),
        }
        for level, episodes in valid.items()
    }
    names = sorted({name for level in levels.values() for name in level["components"]})
    return {
        **{
            key: fmean(level[key] for level in levels.values())
            for key in ("reward_mean", "success_rate", "f1")
        },
        "components": {
            name: fmean(level["components"].get(name, 0.0) for level in levels.values())
            for name in names
        },
        "episodes": sum(level["episodes"] for level in levels.values()),
        "levels": levels,
        "model": str(BASE),
        "temperature": settings.generation.temperature,
        "seed": settings.seed,
    }
