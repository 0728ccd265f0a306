"""Stage `audit`: check that the problems can be solved, but not by keyword search alone.

Three policies without a model play the same problems of each difficulty over the wire. They
are the oracle, which knows gold, plain keyword search, and random code. If the oracle earns less
than `MIN_ORACLE`, no policy can earn the reward: gold is wrong, limits are too tight, or
papers do not fit. The chain then stops before it trains a model on them. It also stops where a
search for method and field solves generated problems, whose papers should print no field.

Writes reports/audit.json and reports/problems.html, a page that shows the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agent.evaluation.statistics import choose_problems
from agent.policies.scripted import keyword, oracle, random_code
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.problems.fields import SyntheticSettings, read_question, sentences_with
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from env.settings import CHILD_CONTEXT_CHARS
from rewards.combine import COMPONENTS
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1
from tasks import paths
from tasks.config.params import Params
from tasks.errors import StageError, as_stage_error
from tasks.io import read_report, write_json, write_text
from tasks.reporting.html import problems_page
from tasks.reporting.playing import play_shown
from tasks.tracking.runs import StageRun

MIN_ORACLE = 0.9
"""Least reward of known gold."""
MAX_SEARCH = 0.35
"""Most F1 of a search for method and field in generated problems; fitted code stays below."""
SESSIONS = 32
SHOWN = 2
"""Problems of each difficulty on the page."""
REPORT = Path("reports/audit.json")
PAGE = Path("reports/problems.html")

Episodes = Mapping[str, Sequence[Trajectory]]
"""Episodes by policy; all policies played the same problems in the same order."""


@as_stage_error()
def run(params: Params, run: StageRun) -> Path:
    """Play the three policies and write page and report; returns the report's path.

    Raises:
        StageError: the data is missing, all episodes of a policy are void, the oracle earns too
            little, or a search reads what needs a reader.
    """
    from tasks.deployment.environment import environment

    problems = choose(paths.PROBLEMS, params.audit.problems)
    data = read_report(paths.PREPARED, "prepare")
    with environment(params) as url:
        played = play_all(problems, url, params)
    report = describe(played)
    page = problems_page(report, problems, data=data, samples=SHOWN, profile=params.profile)
    run.log_artifact(write_text(PAGE, page))
    run.log_artifact(write_json(REPORT, report))
    run.log_metrics(
        {
            f"audit/{level}_{name}_{score}": numbers[score]
            for level, row in report["levels"].items()
            for name, numbers in row["policies"].items()
            for score in ("reward", "f1")
        }
    )
    if report["unsolved"]:
        raise StageError(complaint(report))
    if params.prepare.source == "synthetic":
        check_reading(problems, params.prepare.synthetic)
    return REPORT


def check_reading(problems: Sequence[Problem], settings: SyntheticSettings) -> None:
    """Check that no search answers the generated problems.

    Raises:
        StageError: at a level, the mean F1 of a search for method and field is above `MAX_SEARCH`.
    """
    for level in settings.levels:
        asked = [problem for problem in problems if problem.difficulty == level]
        scores = [plain_f1(one, method_and_field(one)) for one in asked]
        if scores and fmean(scores) > MAX_SEARCH:
            raise StageError(
                f"a search for method and field reaches F1 {fmean(scores):.2f} at {level}, above "
                f"{MAX_SEARCH:g}: the papers print the fields. Run `rlm prepare` again."
            )


def method_and_field(problem: Problem) -> list[dict[str, Any]]:
    """The method's sentences with the word of the field; all of them if none has it."""
    method, field = read_question(problem.question)
    hits = sentences_with(method, problem.papers)
    found = [span for span in hits if f"({field})" in span.text] or hits
    return [span.model_dump(exclude={"text"}) for span in found]


def plain_f1(problem: Problem, answer: Any) -> float:
    """Plain character F1 of an answer, in [0, 1]."""
    return span_f1(locate(answer, problem.texts, RewardSettings()).retrieved, problem.places).f1


def choose(folder: Path, count: int) -> list[Problem]:
    """Up to `count` problems of each difficulty, from all splits.

    Raises:
        SettingsError: the data is missing.
    """
    store = ProblemStore.load(folder)
    return [
        store.get(name)
        for level in store.difficulties()
        for _, name in choose_problems({level: store.ids(difficulty=level)}, count, seed=0)
    ]


def play_all(problems: Sequence[Problem], url: str, params: Params) -> dict[str, list[Trajectory]]:
    """Episodes of every problem by policy, the best policy first.

    Raises:
        EpisodeError: the environment is lost.
    """
    specs = [
        EpisodeSpec(problem.problem_id, seed=number, difficulty=problem.difficulty)
        for number, problem in enumerate(problems)
    ]
    sessions = min(len(specs), params.env.max_sessions, SESSIONS)
    policies = {"oracle": oracle(problems), "keyword": keyword(), "random": random_code()}
    return {
        name: play_shown(name, policy, url, specs, sessions=sessions)
        for name, policy in policies.items()
    }


def describe(played: Episodes) -> dict[str, Any]:
    """The report: means by difficulty and policy, and problems that the oracle cannot solve.

    Raises:
        StageError: all episodes of a policy at a difficulty are void.
    """
    levels: dict[str, Any] = {}
    for level in dict.fromkeys(episode.difficulty for episode in played["oracle"]):
        rows = {
            name: _scores(name, level, [one for one in episodes if one.difficulty == level])
            for name, episodes in played.items()
        }
        levels[level] = {"problems": rows["oracle"]["episodes"], "policies": rows}
    return {
        "levels": levels,
        "min_oracle": MIN_ORACLE,
        "unsolved": {
            episode.problem_id: episode.reward
            for episode in played["oracle"]
            if episode.reward is not None and episode.reward < MIN_ORACLE
        },
        "by_problem": {
            name: {episode.problem_id: episode.reward for episode in episodes}
            for name, episodes in played.items()
        },
    }


def _scores(name: str, level: str, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    valid = [episode for episode in episodes if episode.void is None]
    if not valid:
        raise StageError(
            f"all episodes of {name} at {level} are void ({episodes[0].void}). "
            "Read the log of the environment."
        )
    return {
        "episodes": len(valid),
        "void": len(episodes) - len(valid),
        "reward": fmean(episode.reward or 0.0 for episode in valid),
        "f1": fmean(episode.metrics.f1 if episode.metrics else 0.0 for episode in valid),
        **{part: fmean(episode.components[part] for episode in valid) for part in COMPONENTS},
    }


def complaint(report: Mapping[str, Any]) -> str:
    """Error message: number of unsolved problems, the first of them, and likely causes."""
    unsolved = sorted(report["unsolved"].items(), key=lambda item: item[1])
    named = ", ".join(f"{name} ({reward:.2f})" for name, reward in unsolved[:5])
    return (
        f"{len(unsolved)} of {sum(row['problems'] for row in report['levels'].values())} problems "
        f"give the oracle less than {MIN_ORACLE:g}: {named}{', ...' * (len(unsolved) > 5)}. "
        f"Check them in {PAGE}: gold too short for rewards.min_span_chars, papers longer than "
        f"{CHILD_CONTEXT_CHARS} characters, or too few turns, frames or tree_tokens (env.limits)."
    )
