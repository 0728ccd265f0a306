"""Stage `evaluate`: compare the models before and after training on the same problems and seeds.

`before` is models/base; `after` is models/merged, the files that `register` registers. Both play
every problem greedily and sampled at `generation.temperature`. The headline reward is
the sampled one, as in training and in the baseline; F1 is reported for both modes.
`agent/evaluation/report.py` computes the figures.

Writes reports/evaluation.json, reports/episodes.parquet (a row per episode) and
reports/transcripts.jsonl (complete episodes of a fixed sample). What a killed run has played, by
model and mode, the next one doesn't play again.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import TypeAdapter
from rich.console import Console

from agent.errors import PolicyError
from agent.evaluation.report import EpisodeRow, Mode, compare_models, episode_row, transcript
from agent.evaluation.statistics import Bootstrap, choose_problems
from agent.rollouts.specs import EpisodeSpec, by_difficulty, read_specs
from agent.settings import GenerationSettings
from env.errors import EpisodeError
from tasks import paths
from tasks.config.params import Params
from tasks.errors import StageError, as_stage_error
from tasks.io import digest, read_json, replacing, require, write_json, write_text
from tasks.reporting import progress
from tasks.reporting.playing import play_shown
from tasks.tracking.lineage import folder_hash
from tasks.tracking.runs import StageRun, result_metrics
from tasks.training.fingerprint import fingerprint

if TYPE_CHECKING:
    from agent.policies.base import Policy
    from agent.rollouts.trajectory import Trajectory

SEED = 0
KEPT = 6
"""Transcripts of each difficulty and model."""
MODELS = {"before": paths.BASE, "after": paths.MERGED}
EPISODES = Path("reports/episodes.parquet")
PLAYED = paths.RUN / "evaluate"
"""Episodes of a run that was killed."""
Model = Path | Callable[[GenerationSettings], "Policy"]
"""A model's folder, or a function that makes a policy with the given decoding."""

logger = logging.getLogger(__name__)


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Play both models, compare them and write the results; returns the report's path.

    Raises:
        StageError: a model or the data is missing, or all episodes of
            a model are void.
    """
    import torch

    from tasks.deployment.environment import environment

    settings = params.evaluate
    require(MODELS["before"], "warmstart")
    require(MODELS["after"], "export")
    data = paths.problems_of(settings.split)
    specs = choose(data, settings.episodes, SEED)
    torch.set_num_threads(params.threads)
    sessions = min(len(specs), params.env.max_sessions, params.generation.batch_frames)

    marks = fingerprint(params, paths.BASE, data)
    own = [settings.model_dump(), params.threads, Path(__file__).read_text(encoding="utf-8")]
    marks |= {"after": folder_hash(paths.MERGED), "stage": digest(own)}
    if read_json(PLAYED / "marks.json") != marks:
        shutil.rmtree(PLAYED, ignore_errors=True)
        write_json(PLAYED / "marks.json", marks)
    played: dict[str, dict[Mode, list[Trajectory]]] = {}
    alone: dict[str, list[float]] = {}
    with environment(params) as url:
        for name, path in MODELS.items():
            played[name] = play_modes(
                path, url, specs, params, sessions=sessions, label=name, keep=PLAYED
            )
            alone[name] = seconds_of(play_alone(path, url, specs, params, label=name))
    rows = {name: rows_of(modes, name) for name, modes in played.items()}
    report = compare(rows, alone, params)
    sample = [transcript(episode, name, "greedy") for name, episode in by_level(played, KEPT)]
    with replacing(EPISODES) as temporary:
        pd.DataFrame(rows["before"] + rows["after"]).to_parquet(temporary, index=False)
    write_text(paths.TRANSCRIPTS, "".join(json.dumps(item) + "\n" for item in sample))
    write_json(paths.EVALUATION, report)
    write_json(paths.METRICS, {name: result_metrics(report[name]) for name in MODELS})
    log(report, run)
    shutil.rmtree(PLAYED)
    Console().print(report["improvement"], highlight=False)
    return paths.EVALUATION


@as_stage_error()
def choose(path: Path, count: int, seed: int) -> list[EpisodeSpec]:
    """`count` problems, balanced over difficulties, with the seeds of their episodes.

    Raises:
        StageError: the file is missing.
    """
    specs = {spec.problem_id: spec for spec in read_specs(path)}
    levels = by_difficulty(specs.values()).items()
    ids = {level: [spec.problem_id for spec in of_level] for level, of_level in levels}
    chosen = choose_problems(ids, count, seed)
    if len(chosen) < count:
        logger.warning("%s has %d problems: all are played, not %d", path, len(chosen), count)
    return [
        replace(specs[problem_id], seed=seed * 1_000_003 + index)
        for index, (_, problem_id) in enumerate(chosen)
    ]


def load_policy(model: Model, generation: GenerationSettings) -> Policy:
    """Policy of a model with the given decoding."""
    if not isinstance(model, Path):
        return model(generation)
    from agent.policies.hf_policy import TransformersPolicy, load_model

    return TransformersPolicy(*load_model(model), generation)


def play_model(
    model: Model,
    url: str,
    specs: Sequence[EpisodeSpec],
    generation: GenerationSettings,
    *,
    sessions: int,
    label: str,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Episodes of a model in the order of `specs`, with their progress.

    `on_episode` receives each episode when it ends, so that finished ones survive an error.
    """
    with progress.doing(f"{label}: load the model"):
        policy = load_policy(model, generation)
    return play_shown(label, policy, url, specs, sessions=sessions, on_episode=on_episode)


def play_modes(
    model: Model,
    url: str,
    specs: Sequence[EpisodeSpec],
    params: Params,
    *,
    sessions: int,
    label: str,
    keep: Path | None = None,
) -> dict[Mode, list[Trajectory]]:
    """Episodes of each mode, greedy ones first; those of a mode are kept in a folder, if given."""
    greedy, sampled = params.generation.greedy, params.generation
    seeded = [replace(spec, seed=spec.seed + 7_919) for spec in specs]
    modes: dict[Mode, tuple[Sequence[EpisodeSpec], GenerationSettings]]
    modes = {"greedy": (specs, greedy), "sampled": (seeded, sampled)}
    played: dict[Mode, list[Trajectory]] = {}
    for mode, (some, how) in modes.items():
        name = f"{label}, {mode}"
        play = partial(play_model, model, url, some, how, sessions=sessions, label=name)
        played[mode] = kept(keep / f"{label}-{mode}.json", play) if keep else play()
    return played


def kept(path: Path, play: Callable[[], list[Trajectory]]) -> list[Trajectory]:
    """The episodes that an earlier run left at a path, or those of `play`, which are left there.

    Nothing is left of episodes of which one is void: they are played again.
    """
    from agent.rollouts.trajectory import Trajectory

    episodes = TypeAdapter(list[Trajectory])
    with suppress(OSError, ValueError):  # none, or a damaged one
        found = episodes.validate_json(path.read_bytes())
        progress.say(f"{path.stem}: played by the run before")
        return found
    played = play()
    if not any(episode.void for episode in played):
        with replacing(path) as temporary:
            temporary.write_bytes(episodes.dump_json(played))
    return played


def rows_of(played: dict[Mode, list[Trajectory]], name: str) -> list[EpisodeRow]:
    """A row for each episode of a model."""
    return [episode_row(one, name, mode) for mode, episodes in played.items() for one in episodes]


def play_alone(
    model: Model, url: str, specs: Sequence[EpisodeSpec], params: Params, *, label: str
) -> list[Trajectory]:
    """Greedy episodes of some problems, one at a time, for the latency that a single user sees.

    With one session, a short outage can end the play. Everything else is measured by then, so
    lost episodes only cause a warning.
    """
    count = params.evaluate.latency_episodes
    some = specs[:: max(1, len(specs) // count)][:count]
    greedy = params.generation.greedy
    label = f"{label}, one at a time"
    played: list[Trajectory] = []
    lost: str | None = None
    try:
        play_model(model, url, some, greedy, sessions=1, label=label, on_episode=played.append)
    except (EpisodeError, PolicyError) as error:
        lost = str(error)
    lost = lost or next((episode.void for episode in played if episode.void), None)
    if lost:
        counts = f"only {len(seconds_of(played))} of {len(some)} episodes count for the latency"
        logger.warning("evaluate: %s: %s, the others are lost (%s)", label, counts, lost)
    return played


def seconds_of(episodes: Sequence[Trajectory]) -> list[float]:
    """Duration in seconds of each episode that is not void."""
    return [episode.seconds for episode in episodes if episode.void is None]


def compare(
    rows: dict[str, list[EpisodeRow]], alone: dict[str, list[float]], params: Params
) -> dict[str, Any]:
    """The report of both models, with the seed and the modes of its figures.

    Raises:
        StageError: all episodes of a model are void, or every pair has a void episode.
    """
    settings = params.evaluate
    for name, of_model in rows.items():
        require_played(of_model, name)
    with as_stage_error(ValueError):
        report = compare_models(rows, alone, Bootstrap(settings.bootstrap, SEED))
    if report["voids_as_zero"]:
        logger.warning(
            f"evaluate: {report['voids_as_zero']} void episodes of after count as 0, since it has "
            f"more than before ({report['after']['voids']})"
        )
    return report | {
        "split": settings.split,
        "seed": SEED,
        "inputs": inputs(params),
        "reward_mode": "reward_mean, reward, components, success_rate, stop_reasons and tokens "
        f"describe episodes sampled at T = {params.generation.temperature:g}; f1_greedy and "
        "other names with greedy describe greedy episodes",
        "models": {name: str(path) for name, path in MODELS.items()},
    }


def inputs(params: Params) -> str:
    """Digest of what the figures of a report are of: settings, and the models before and after."""
    models = map(folder_hash, MODELS.values())
    return digest([params.of_episodes(), params.evaluate.model_dump(), *models])


def require_played(
    rows: Sequence[EpisodeRow],
    name: str,
    most: float = 1.0,
    fix: str = "Read the log of the environment.",
) -> None:
    """Warn about void episodes of a model.

    Raises:
        StageError: all episodes are void, or more than this share, so that the others would be an
            easier selection of problems.
    """
    voids = [row["void"] for row in rows if row["void"] is not None]
    if voids:
        logger.warning(
            f"evaluate: {len(voids)} of {len(rows)} episodes of {name} are void and have no score "
            f"({voids[0]})"
        )
    if len(voids) == len(rows):
        raise StageError(f"all episodes of {name} are void ({voids[0]}). {fix}")
    if len(voids) > most * len(rows):
        raise StageError(
            f"{len(voids)} of {len(rows)} episodes of {name} are void, more than {most:.0%} "
            f"(first: {voids[0]}). {fix}"
        )


def by_level(
    played: dict[str, dict[Mode, list[Trajectory]]], count: int
) -> list[tuple[str, Trajectory]]:
    """Greedy episodes of every model on the first `count` problems of each difficulty.

    The order of the data alone decides, so that nobody can pick favourable examples.
    """
    of_level: dict[str, list[str]] = {}
    for episode in played["before"]["greedy"]:
        of_level.setdefault(episode.difficulty, []).append(episode.problem_id)
    problem_ids = {item for ids in of_level.values() for item in ids[:count]}
    return [
        (name, episode)
        for name, modes in played.items()
        for episode in modes["greedy"]
        if episode.problem_id in problem_ids
    ]


def log(report: dict[str, Any], run: StageRun) -> None:
    """Log the headline figures and the files to the run."""
    metrics = {
        f"evaluate/{name}_{model}": report[model][name]
        for model in MODELS
        for name in ("reward_mean", "f1_greedy", "f1_sampled", "success_rate", "void_rate")
        if report[model][name] is not None
    }
    for name in ("reward", "f1_greedy"):
        low, high = report[name]["ci95"]
        metrics |= {
            f"evaluate/{name}_difference": report[name]["difference"],
            f"evaluate/{name}_ci95_low": low,
            f"evaluate/{name}_ci95_high": high,
        }
    run.log_metrics(metrics)
    for path in (paths.EVALUATION, EPISODES, paths.TRANSCRIPTS):
        run.log_artifact(path)
