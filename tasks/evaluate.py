"""Stage `evaluate`: before and after on the same held-out problems and the same seeds.

`before` is models/base, `after` is models/merged: the very files that `register` registers. Both
play every problem greedily and sampled at `evaluate.generation.temperature`. The reward that the
headline speaks of is the sampled one, as in training and in the measured baseline; F1 is given
in both modes. With `evaluate.judge` set, an LLM grades some greedy answers of both, unaware of
who answered. The numbers are made in `agent/evaluation.py`.

Writes reports/evaluation.json, reports/episodes.parquet (a row per episode) and
reports/transcripts.jsonl (whole episodes of a stated sample).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agent import evaluation
from agent.errors import PolicyError
from agent.evaluation import Mode, Row
from agent.settings import GenerationSettings
from agent.statistics import Bootstrap, choose_problems
from env.errors import EpisodeError
from env.problems.store import ProblemStore
from tasks import traces
from tasks.config import EvaluateSettings, JudgeSettings, Params
from tasks.errors import StageError
from tasks.outputs import replacing, write_json

if TYPE_CHECKING:
    from agent.judge import Judge
    from agent.policy import Policy
    from agent.rollout import EpisodeSpec
    from agent.trajectory import Trajectory
    from tasks.tracking import StageRun

TEST = Path("data/problems/test.parquet")
MODELS = {"before": Path("models/base"), "after": Path("models/merged")}
REPORT = Path("reports/evaluation.json")
EPISODES = Path("reports/episodes.parquet")
TRANSCRIPTS = Path("reports/transcripts.jsonl")
PUBLIC = ["problem_id", "group_id", "difficulty", "tier"]
Model = Path | Callable[[GenerationSettings], "Policy"]
"""A model's folder, or what makes a policy that decodes as it is told."""

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Play, compare, write; returns the report's path.

    Raises:
        StageError: a model or the data is missing, there are too few problems, or every episode
            of a model was void.
    """
    import torch

    from tasks.deploy import environment

    settings = params.evaluate
    for stage, path in (("warmstart", MODELS["before"]), ("export", MODELS["after"])):
        if not path.is_dir():
            raise StageError(f"evaluate: {path} is missing; run the stage {stage} first")
    specs = choose(TEST, settings.episodes, settings.seed)
    judge = open_judge(settings.judge)
    torch.set_num_threads(params.threads)
    sessions = min(len(specs), params.env.max_sessions, settings.generation.batch_frames)

    played: dict[str, dict[tuple[Mode, int], list[Trajectory]]] = {}
    alone: dict[str, list[float]] = {}
    try:
        with environment(params) as url:
            for name, path in MODELS.items():
                played[name] = play_modes(path, url, specs, settings, sessions=sessions, label=name)
                alone[name] = seconds_of(play_alone(path, url, specs, settings, label=name))
    except (EpisodeError, PolicyError) as error:
        raise StageError(f"evaluate: {error}") from error

    rows = {
        name: [
            evaluation.episode_row(episode, name, mode, number, params.rewards.success_at)
            for (mode, number), episodes in modes.items()
            for episode in episodes
        ]
        for name, modes in played.items()
    }
    verdicts = ask_judge(judge, played, rows, settings) if judge else None
    report = compare(rows, alone, settings) | {"judge": verdicts}
    sample = [
        evaluation.transcript(episode, name, "greedy")
        for name, episode in chosen(played, settings.transcripts)
    ]
    traces.log_episodes(run, chosen(played, params.tracking.traces))
    with replacing(EPISODES) as temporary:
        pd.DataFrame(rows["before"] + rows["after"]).to_parquet(temporary, index=False)
    with replacing(TRANSCRIPTS) as temporary:
        temporary.write_text("".join(json.dumps(item) + "\n" for item in sample), encoding="utf-8")
    write_json(REPORT, report)
    log(report, run)
    Console().print(report["improvement"], highlight=False)
    return REPORT


def choose(path: Path, count: int, seed: int) -> list[EpisodeSpec]:
    """The problems to play, balanced over difficulties, with the seeds of their episodes.

    Raises:
        StageError: the file is missing or holds too few problems.
    """
    from agent.rollout import EpisodeSpec

    if not path.is_file():
        raise StageError(f"evaluate: {path} is missing; run the stage prepare first")
    frame = pd.read_parquet(path, columns=PUBLIC).set_index("problem_id", drop=False)
    levels = {
        str(level): [str(item) for item in part["problem_id"]]
        for level, part in frame.groupby("difficulty", sort=False)
    }
    try:
        chosen = choose_problems(levels, count, seed)
    except ValueError as error:
        raise StageError(
            f"evaluate: {path}: {error}; lower evaluate.episodes or raise "
            "prepare.synthetic.groups.test"
        ) from None
    return [
        EpisodeSpec(
            problem_id=problem_id,
            seed=seed * 1_000_003 + index,
            difficulty=level,
            group_id=str(frame.loc[problem_id, "group_id"]),
            tier=str(frame.loc[problem_id, "tier"]),
        )
        for index, (level, problem_id) in enumerate(chosen)
    ]


def load_policy(model: Model, generation: GenerationSettings) -> Policy:
    """A model as a policy."""
    if not isinstance(model, Path):
        return model(generation)
    from agent.models import TransformersPolicy, load_model

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
    """Episodes of a model, in the order of `specs`, with a progress bar.

    `on_episode` gets each as it ends, so that those of a play that breaks off are not lost.
    """
    from agent.rollout import play

    policy = load_policy(model, generation)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, total=len(specs))

        def ended(episode: Trajectory) -> None:
            progress.advance(bar)
            if on_episode is not None:
                on_episode(episode)

        return play(policy, url, specs, sessions=sessions, on_episode=ended)


def play_modes(
    model: Model,
    url: str,
    specs: Sequence[EpisodeSpec],
    settings: EvaluateSettings,
    *,
    sessions: int,
    label: str,
) -> dict[tuple[Mode, int], list[Trajectory]]:
    """All problems once greedily and `sampling_seeds` times sampled, by (mode, pass)."""
    greedy = settings.generation.model_copy(update={"temperature": 0.0})
    played: dict[tuple[Mode, int], list[Trajectory]] = {
        ("greedy", 0): play_model(
            model, url, specs, greedy, sessions=sessions, label=f"{label}, greedy"
        )
    }
    for number in range(settings.sampling_seeds):
        seeded = [replace(spec, seed=spec.seed + 7_919 * (number + 1)) for spec in specs]
        played["sampled", number] = play_model(
            model,
            url,
            seeded,
            settings.generation,
            sessions=sessions,
            label=f"{label}, sampled {number + 1} of {settings.sampling_seeds}",
        )
    return played


def play_alone(
    model: Model, url: str, specs: Sequence[EpisodeSpec], settings: EvaluateSettings, *, label: str
) -> list[Trajectory]:
    """Some of the problems one at a time, greedily: what takes as long as one user sees.

    With one session a short outage ends the play, or loses all of it; by then everything else is
    measured, so what is lost is warned of and left out.
    """
    step = max(1, len(specs) // settings.latency_episodes)
    some = specs[::step][: settings.latency_episodes]
    greedy = settings.generation.model_copy(update={"temperature": 0.0})
    label = f"{label}, one at a time"
    played: list[Trajectory] = []
    lost: str | None = None
    try:
        play_model(model, url, some, greedy, sessions=1, label=label, on_episode=played.append)
    except (EpisodeError, PolicyError) as error:
        lost = str(error)
    lost = lost or next((episode.void for episode in played if episode.void), None)
    if lost:
        logger.warning(
            "evaluate: %s: %d of %d episodes give the latency (unknown when none does); the rest "
            "is lost: %s",
            *(label, len(seconds_of(played)), len(some), lost),
        )
    return played


def seconds_of(episodes: Sequence[Trajectory]) -> list[float]:
    """Seconds of each episode that is not void."""
    return [episode.seconds for episode in episodes if episode.void is None]


def open_judge(settings: JudgeSettings) -> Judge | None:
    """The judge of the settings, asked once; None where there is none.

    Raises:
        StageError: the endpoint refuses the question or the key, or does not know the address or
            the model.
    """
    if settings.base_url is None:
        return None
    from agent.endpoint import Endpoint
    from agent.judge import Judge

    try:
        endpoint = Endpoint(
            settings.base_url, settings.model, timeout_s=settings.timeout_s, gone_after=None
        )
        judge = Judge(endpoint, settings.concurrency)
        judge.check()
    except PolicyError as error:
        raise StageError(f"evaluate: evaluate.judge: {error}") from None
    return judge


def ask_judge(
    judge: Judge,
    played: dict[str, dict[tuple[Mode, int], list[Trajectory]]],
    rows: dict[str, list[Row]],
    settings: EvaluateSettings,
) -> dict[str, Any]:
    """Have greedy answers judged, the same problems of both models, and write it into their rows.

    Gold comes from the data folder: the environment gives none away.
    """
    from agent.judge import Case, answer_texts

    greedy = {name: {e.problem_id: e for e in modes["greedy", 0]} for name, modes in played.items()}
    ids = [
        i for i in greedy["before"] if all(episodes[i].void is None for episodes in greedy.values())
    ]
    # Evenly over the problems, which stand level by level.
    count = min(len(ids), settings.judge.max_episodes)
    ids = [ids[k * len(ids) // count] for k in range(count)]
    store = ProblemStore.load(TEST.parent)
    asked = [(name, problem_id) for problem_id in ids for name in MODELS]
    cases = [
        Case(
            problem.question,
            [[span.text for span in fact.spans] for fact in problem.evidence],
            answer_texts(
                greedy[name][problem_id].answer, {p.paper_id: p.text for p in problem.papers}
            ),
        )
        for name, problem_id in asked
        for problem in [store.get(problem_id)]
    ]
    verdicts = dict(zip(asked, judge.judge(cases), strict=True))
    for name, of_model in rows.items():
        for row in of_model:
            verdict = verdicts.get((name, row["problem_id"]))
            if verdict is not None and row["mode"] == "greedy":
                found = (verdict.score, verdict.precision, verdict.recall, verdict.missing)
                row |= dict(zip(evaluation.JUDGED, found, strict=True))
    usage = judge.endpoint.usage
    bootstrap = Bootstrap(settings.bootstrap, settings.seed)
    prices = settings.judge.prompt_price, settings.judge.completion_price
    return evaluation.judge_report(rows, bootstrap) | {
        "model": settings.judge.model,
        "usage": {**vars(usage), "cost": usage.cost(*prices)},
    }


def compare(
    rows: dict[str, list[Row]], alone: dict[str, list[float]], settings: EvaluateSettings
) -> dict[str, Any]:
    """The report, with the modes and seeds its numbers come from.

    Raises:
        StageError: every episode of a model is void, or every pair has a void.
    """
    for name, of_model in rows.items():
        require_played(of_model, name)
    bootstrap = Bootstrap(settings.bootstrap, settings.seed)
    try:
        report = evaluation.report(rows, alone, bootstrap)
    except ValueError as error:
        raise StageError(f"evaluate: {error}") from None
    return report | {
        "seed": settings.seed,
        "reward_mode": f"reward_mean, reward, components, success_rate, stop_reasons and tokens "
        f"are of episodes sampled at T = {settings.generation.temperature:g}; f1_greedy and "
        "what is named greedy are of greedy ones",
        "models": {name: str(path) for name, path in MODELS.items()},
    }


def require_played(rows: Sequence[Row], name: str) -> None:
    """Warn of void episodes of a model.

    Raises:
        StageError: all are.
    """
    voids = [row["void"] for row in rows if row["void"] is not None]
    if voids:
        logger.warning(
            "evaluate: %d of %d episodes of %s are void and excluded, the first: %s",
            *(len(voids), len(rows), name, voids[0]),
        )
    if len(voids) == len(rows):
        raise StageError(
            f"evaluate: every episode of {name} is void, the first: {voids[0]}; look at the "
            "environment's log"
        )


def chosen(
    played: dict[str, dict[tuple[Mode, int], list[Trajectory]]], count: int
) -> list[tuple[str, Trajectory]]:
    """The first `count` problems by id of each difficulty, greedy, of every model.

    Chosen by id and before anyone looks: no picking of fine examples.
    """
    of_level: dict[str, list[str]] = {}
    for episode in played["before"]["greedy", 0]:
        of_level.setdefault(episode.difficulty, []).append(episode.problem_id)
    kept = {item for ids in of_level.values() for item in sorted(ids)[:count]}
    return [
        (name, episode)
        for name, modes in played.items()
        for episode in modes["greedy", 0]
        if episode.problem_id in kept
    ]


def log(report: dict[str, Any], run: StageRun) -> None:
    """Headline numbers to the run; the files as artifacts."""
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
    for path in (REPORT, EPISODES, TRANSCRIPTS):
        run.log_artifact(path)
