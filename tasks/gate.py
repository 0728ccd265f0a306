"""Stage `gate`: decide whether models/base can be trained by GRPO, and measure the baseline.

GRPO learns from differences between episodes, so the base must sometimes earn a primary objective,
and not by luck. In the default world, an answer that is a random line earns one in 3 to 4 % of the
problems: a gate that one earning episode opens would open for random code four times out of five.
What luck of code seldom does is read: its quote was in nothing that one of its agents had read.
(Readers that say yes at random do read, and so does code that hands its random line to an idle
`llm_query`: both open the gate. So does code that answers with a random line about what is asked,
one of six: it has searched, and a group of such episodes has a spread.) A level opens it

- with `FINDS` episodes that earn and quote a text that an agent had read, or
- with `SUCCESSES` successful ones, for a model that searches by code and reads nothing.

The gate plays the target difficulty and the easiest, ten episodes each, and more up to sixty each
while it is closed. It opens at one level of sixty episodes with the probability

    share of earning episodes           2 %    5 %    10 %    20 %
    that quote what was read           0.34   0.81    0.99    1.00
    that succeed without reading       0.00   0.03    0.39    0.97

and for random code, or an answer that is a random line, with at most 0.01 over both levels
(`tests/unit/test_tasks_gate_opening.py`). A group of eight episodes at 5 % has one that earns in a
third of cases, which GRPO can learn from.

What the model could do before its demonstrations is in reports/zeroshot.json (`zeroshot.py`).
Writes reports/gate.json and, if the gate is open, reports/baseline.json.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agent.rollouts.specs import EpisodeSpec, by_difficulty, read_specs
from agent.rollouts.trajectory import SUCCESS_AT, Trajectory
from rewards.settings import RewardSettings
from rewards.spans import distinct_items, quoted_text
from tasks import paths
from tasks.config.params import Params
from tasks.errors import GateFailed, StageError, as_stage_error
from tasks.io import read_json, write_json
from tasks.reporting import progress
from tasks.reporting.playing import play_shown
from tasks.tracking.runs import StageRun
from tasks.training.problem_data import unseen

PRIMARY = "primary_objective"
EPISODES, MOST = 10, 60
"""Episodes of a level at once, and at most while the gate is closed."""
SEED = 0
FINDS = 2
"""Episodes of a level that earn by reading, of which random code has none."""
SUCCESSES = 7
"""Successful episodes of a level; random lines have as many of sixty in 0.7 % of cases."""

PlayLevel = Callable[[str, int, int], list[Trajectory]]
"""Function that plays the problems [start, stop) of a difficulty's shuffled list."""


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Play the base model, decide, and measure the baseline; returns the baseline's path.

    Raises:
        GateFailed: no level opened the gate; reports/gate.json has the same advice.
        StageError: the model or the data is missing, or most episodes are void.
    """
    import torch

    from agent.policies.hf_policy import TransformersPolicy, load_model
    from tasks.deployment.environment import environment

    curriculum = params.train.curriculum
    specs = unseen(by_level(paths.TRAIN, SEED), params)
    torch.set_num_threads(params.threads)
    with progress.doing("load the model"):
        policy = TransformersPolicy(*load_model(paths.BASE), params.generation)
    sessions = min(params.env.max_sessions, params.generation.batch_frames)
    with environment(params) as url:

        def play_level(level: str, start: int, stop: int) -> list[Trajectory]:
            some = specs.get(level, [])[start:stop]
            if not some and start == 0:
                raise StageError(f"{paths.TRAIN} has no problem of difficulty {level!r}")
            return play_shown(level, policy, url, some, sessions=sessions)

        levels = tuple(dict.fromkeys((curriculum.target, curriculum.levels[0])))
        report = decide(probe(play_level, levels, params.rewards), params.rewards)
        report |= {
            "model": str(paths.BASE),
            "temperature": params.generation.temperature,
            "seed": SEED,
            "zero_shot": read_json(paths.ZERO_SHOT) or None,
        }
        run.log_artifact(write_json(paths.GATE, report))
        run.set_tags({"gate": "open" if report["passed"] else "refused"})
        if not report["passed"]:
            paths.BASELINE.unlink(missing_ok=True)  # of an earlier model
            raise GateFailed(report["advice"])
        episodes = params.gate.baseline_episodes
        baseline = {level: play_level(level, 0, episodes) for level in curriculum.levels}
    summary = summarise(baseline) | {"temperature": params.generation.temperature, "seed": SEED}
    run.log_artifact(write_json(paths.BASELINE, summary))
    for level, numbers in summary["levels"].items():
        scores = {"reward": numbers["reward_mean"], **numbers["components"]}
        run.log_metrics({f"baseline/{level}_{name}": value for name, value in scores.items()})
    return paths.BASELINE


def by_level(path: Path, seed: int) -> dict[str, list[EpisodeSpec]]:
    """Training problems by difficulty, shuffled once, so that no problem is played twice.

    Raises:
        SettingsError: the data is missing.
    """
    specs = sorted(read_specs(path), key=lambda spec: spec.difficulty)
    random.Random(seed).shuffle(specs)
    return by_difficulty(
        replace(spec, seed=seed * 1_000_003 + number) for number, spec in enumerate(specs)
    )


def probe(
    play_level: PlayLevel, levels: Sequence[str], rewards: RewardSettings
) -> dict[str, list[Trajectory]]:
    """Episodes by level: `EPISODES` of each; more, up to `MOST`, while none opens."""
    played = {level: play_level(level, 0, EPISODES) for level in levels}
    for level in levels:
        while not any(opens(episodes, rewards) for episodes in played.values()):
            start = len(played[level])
            stop = min(start + EPISODES, MOST)
            more = play_level(level, start, stop) if start < stop else []
            if not more:
                break
            played[level] += more
    return played


def opens(episodes: Sequence[Trajectory], rewards: RewardSettings) -> bool:
    """Whether the episodes of a level open the gate: they earn, and not by luck."""
    counts = count(episodes, rewards)
    return counts["found"] >= FINDS or counts["succeeded"] >= SUCCESSES


def count(episodes: Sequence[Trajectory], rewards: RewardSettings) -> dict[str, int]:
    """Numbers of episodes that earn, that earn by reading, and that succeed."""
    earning = [episode for episode in episodes if primary(episode) > 0]
    return {
        "earned": len(earning),
        "found": sum(has_read(episode, rewards.min_span_chars) for episode in earning),
        "succeeded": sum(primary(episode) >= SUCCESS_AT for episode in earning),
    }


def has_read(episode: Trajectory, least_chars: int) -> bool:
    """Whether an agent had read a text that the answer quotes, of at least so many characters."""
    items = distinct_items(episode.answer) or []
    quotes = [text for item in items if len(text := quoted_text(item) or "") >= least_chars]
    turns = [turn for frame in episode.frames.values() for turn in frame.turns]
    return any(quote in turn.observation for quote in quotes for turn in turns)


def primary(episode: Trajectory) -> float:
    """Primary objective of an episode; 0 if it is void."""
    return 0.0 if episode.void else episode.components.get(PRIMARY, 0.0)


def decide(played: dict[str, list[Trajectory]], rewards: RewardSettings) -> dict[str, Any]:
    """The gate's report: the decision, the figures of each level, and advice.

    Raises:
        StageError: most episodes are void, so no decision is possible.
    """
    valid = mostly_valid([episode for episodes in played.values() for episode in episodes])
    passed = any(opens(episodes, rewards) for episodes in played.values())
    levels = {level: figures(episodes, rewards) for level, episodes in played.items()}
    summary = "; ".join(f"{level}: {in_words(row)}" for level, row in levels.items())
    advice = f"open ({summary})" if passed else f"{summary}. GRPO cannot learn. {advise(valid)}"
    return {"passed": passed, "advice": advice, "levels": levels}


def mostly_valid(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that are not void.

    Raises:
        StageError: they are fewer than half.
    """
    valid = [episode for episode in episodes if episode.void is None]
    if 2 * len(valid) < len(episodes) or not valid:
        first = next(episode.void for episode in episodes if episode.void)
        raise StageError(
            f"{len(episodes) - len(valid)} of {len(episodes)} episodes are void ({first}). "
            "Read the log of the environment, then run the stage again."
        )
    return valid


def figures(episodes: Sequence[Trajectory], rewards: RewardSettings) -> dict[str, Any]:
    """Counts and means of a level's episodes; void ones have no part in the means."""
    return {
        "episodes": len(episodes),
        "void": sum(episode.void is not None for episode in episodes),
        **count(episodes, rewards),
        **means([episode for episode in episodes if episode.void is None]),
    }


def in_words(row: Mapping[str, Any]) -> str:
    """The counts of `figures` as a sentence."""
    return (
        f"{row['earned']} of {row['episodes']} episodes earn a primary objective, "
        f"{row['found']} by reading, and {row['succeeded']} succeed"
    )


def advise(valid: Sequence[Trajectory]) -> str:
    """Likely reason why too few episodes earn, and how to fix it."""
    ends = [episode.root.stop_reason for episode in valid]
    turns = sum(episode.counters.turns for episode in valid)
    malformed = sum(episode.counters.format_errors for episode in valid)
    if ends.count("truncated") > len(ends) / 2:
        return (
            "Most roots were truncated: raise max_turn_tokens and max_frame_tokens in "
            "generation, or teach the model longer."
        )
    if malformed > turns / 2:
        return (
            f"{malformed} of {turns} turns lack exactly one repl block: teach the model longer "
            "(warmstart.nano.steps; with demonstrations, more problems or warmstart.sft.epochs)."
        )
    if ends.count("final") < len(ends) / 2:
        return "Few roots gave an answer: teach the model longer, or raise env.limits.max_turns."
    return (
        "The answers contain too little evidence that was read: teach the model longer, use a "
        "stronger one, or make the easiest level easier (prepare.synthetic.levels)."
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


def summarise(baseline: dict[str, list[Trajectory]]) -> dict[str, Any]:
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
            "success_rate": fmean(episode.succeeded for episode in episodes),
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
        "model": str(paths.BASE),
    }
