"""Stage `gate`: may this base model be trained at all, and where does it start from?

GRPO learns from differences between episodes: a model whose `primary_objective` is always 0 gives
it nothing, whatever the other components say. So a few zero-shot episodes at T = 1 are played at
the target difficulty and at the easiest; while all are 0, more follow (ten episodes would stop a
model with 5 % success in 60 % of cases, sixty in 5 %). Only if both levels stay at 0 the gate
refuses.

Writes reports/gate.json and, when the gate is open, reports/baseline.json.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agent.trajectory import Trajectory
from tasks.config import GateSettings, Params
from tasks.errors import GateFailed, StageError
from tasks.outputs import write_json

if TYPE_CHECKING:
    from agent.rollout import EpisodeSpec
    from tasks.tracking import StageRun

PROBLEMS = Path("data/problems")
BASE = Path("models/base")
GATE = Path("reports/gate.json")
BASELINE = Path("reports/baseline.json")

PRIMARY = "primary_objective"

Play = Callable[[str, int, int], list[Trajectory]]
"""Plays problems [from, to) of a difficulty's shuffled list."""

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Play the base model, decide, measure the baseline; returns the baseline's path.

    Raises:
        GateFailed: both levels stayed at 0; reports/gate.json says so with the same advice.
        StageError: model or data are missing, or most episodes are void.
    """
    import torch

    from agent.errors import PolicyError
    from agent.models import TransformersPolicy, load_model
    from agent.rollout import play
    from env.errors import EpisodeError
    from tasks.deploy import environment

    settings, curriculum = params.gate, params.train.curriculum
    specs = read_specs(PROBLEMS, settings.seed)
    torch.set_num_threads(params.threads)
    try:
        policy = TransformersPolicy(*load_model(BASE), settings.generation)
    except PolicyError as error:
        raise StageError(f"gate: {error}") from error
    with environment(params) as url:

        def play_level(level: str, start: int, stop: int) -> list[Trajectory]:
            some = specs.get(level, [])[start:stop]
            if not some and start == 0:
                raise StageError(f"gate: {PROBLEMS} holds no training problem of {level!r}")
            sessions = min(params.env.max_sessions, settings.generation.batch_frames)
            return play(policy, url, some, sessions=sessions)

        try:
            levels = tuple(dict.fromkeys((curriculum.target, curriculum.levels[0])))
            played = probe(play_level, levels, settings)
            report = decide(played, settings) | {"model": str(BASE), "seed": settings.seed}
            write_json(GATE, report)
            run.log_artifact(GATE)
            run.set_tags({"gate": "open" if report["passed"] else "refused"})
            if not report["passed"]:
                BASELINE.unlink(missing_ok=True)  # of an earlier model
                raise GateFailed(report["advice"])
            baseline = {
                level: play_level(level, 0, settings.baseline_episodes)
                for level in curriculum.levels
            }
        except EpisodeError as error:
            raise StageError(f"gate: {error}") from error
    summary = summarise(baseline, params.rewards.success_at, settings)
    write_json(BASELINE, summary)
    run.log_artifact(BASELINE)
    for level, numbers in summary["levels"].items():
        scores = {"reward": numbers["reward_mean"], **numbers["components"]}
        run.log_metrics({f"baseline/{level}_{name}": value for name, value in scores.items()})
    return BASELINE


def read_specs(folder: Path, seed: int) -> dict[str, list[EpisodeSpec]]:
    """Training problems by difficulty, shuffled once, so that no problem is played twice.

    Raises:
        StageError: there is no data yet.
    """
    from agent.rollout import EpisodeSpec
    from env.errors import SettingsError
    from env.problems.store import public_rows

    try:
        rows = sorted(public_rows(folder, "train"), key=lambda row: row.problem_id)
    except SettingsError as error:
        raise StageError(f"gate: {error}") from error
    random.Random(seed).shuffle(rows)
    specs: dict[str, list[EpisodeSpec]] = {}
    for number, row in enumerate(rows):
        specs.setdefault(row.difficulty, []).append(
            EpisodeSpec(
                problem_id=row.problem_id,
                seed=seed * 1_000_003 + number,
                difficulty=row.difficulty,
                group_id=row.group_id,
                tier=row.tier,
            )
        )
    return specs


def probe(
    play_level: Play, levels: Sequence[str], settings: GateSettings
) -> dict[str, list[Trajectory]]:
    """Play each level; then, while nothing but 0 was seen, go on up to `max_episodes` each."""
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
    """Some episode has a primary objective above 0."""
    return any(primary(episode) > 0 for episode in episodes)


def primary(episode: Trajectory) -> float:
    """Of one episode; 0 when it is void."""
    return 0.0 if episode.void else episode.components.get(PRIMARY, 0.0)


def decide(played: dict[str, list[Trajectory]], settings: GateSettings) -> dict[str, Any]:
    """The gate's report: open or not, what was seen at each level, and what to do.

    Raises:
        StageError: most episodes are void, so there is nothing to judge.
    """
    every = [episode for episodes in played.values() for episode in episodes]
    valid = [episode for episode in every if episode.void is None]
    if 2 * len(valid) < len(every) or not valid:
        first = next(episode.void for episode in every if episode.void)
        raise StageError(
            f"gate: {len(every) - len(valid)} of {len(every)} episodes are void, the first: "
            f"{first}; mend the environment and run the stage again"
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
    advice = "open: training has something to learn from" if passed else advise(valid, played)
    return {
        "passed": passed,
        "advice": advice,
        "temperature": settings.generation.temperature,
        "levels": levels,
    }


def advise(valid: Sequence[Trajectory], played: dict[str, list[Trajectory]]) -> str:
    """Why nothing was earned, as far as the episodes show, and how to mend it."""
    counts = ", ".join(f"{len(episodes)} at {level}" for level, episodes in played.items())
    told = f"primary_objective is 0 in every zero-shot episode ({counts}), so GRPO cannot learn. "
    ends = [episode.root.stop_reason for episode in valid]
    turns = sum(episode.counters.turns for episode in valid)
    malformed = sum(episode.counters.format_errors for episode in valid)
    if ends.count("truncated") > len(ends) / 2:
        return told + (
            "Most roots were cut by length: raise gate.generation.max_turn_tokens and "
            "max_frame_tokens (and train.generation's), or warm-start the model longer."
        )
    if malformed > turns / 2:
        return told + (
            f"{malformed} of {turns} turns lack the one repl block: the model does not know the "
            "format; warm-start it (warmstart.kind: nano, or more warmstart.nano.steps)."
        )
    if ends.count("final") < len(ends) / 2:
        return told + (
            "Few roots gave a final answer: warm-start the model longer, or raise "
            "env.limits.max_turns."
        )
    return told + (
        "Answers are given but hold no evidence: warm-start the model longer or use a stronger "
        "one, or make the easiest level easier (prepare.synthetic.levels)."
    )


def means(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Mean reward, components and F1 of episodes that are not void."""
    names = sorted({name for episode in episodes for name in episode.components})
    return {
        "reward_mean": fmean(e.reward or 0.0 for e in episodes) if episodes else None,
        "components": {
            name: fmean(episode.components.get(name, 0.0) for episode in episodes) for name in names
        },
        "f1": fmean(e.evidence.f1 if e.evidence else 0.0 for e in episodes) if episodes else None,
    }


def summarise(
    baseline: dict[str, list[Trajectory]], success_at: float, settings: GateSettings
) -> dict[str, Any]:
    """The baseline over all levels alike, and of each level by itself.

    Raises:
        StageError: every episode of a level is void.
    """
    valid = {level: [e for e in played if e.void is None] for level, played in baseline.items()}
    empty = [level for level, episodes in valid.items() if not episodes]
    if empty:
        raise StageError(f"gate: every baseline episode of {', '.join(empty)} is void")
    levels = {
        level: {
            "episodes": len(episodes),
            "void": len(baseline[level]) - len(episodes),
            "success_rate": fmean(
                episode.answered and primary(episode) >= success_at for episode in episodes
            ),
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
