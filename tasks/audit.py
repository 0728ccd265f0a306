"""Stage `audit`: can the problems be solved, and not by keyword search alone?

Three policies without a model play the same problems of each difficulty over the wire: the oracle,
which knows gold, plain keyword search, and random code. An oracle that earns less than
`audit.min_oracle` means problems whose reward nobody can earn: wrong gold, limits that are too
tight, papers that do not fit; the chain stops before a model is taught on them.

Writes reports/audit.json and reports/problems.html, the page that shows the data to a reader.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agent.policy import Policy
from agent.scripted import keyword, oracle, random_code
from agent.statistics import choose_problems
from agent.trajectory import Trajectory
from env.errors import EpisodeError, SettingsError
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from rewards.combine import COMPONENTS
from tasks.config import AuditSettings, Params
from tasks.errors import StageError
from tasks.outputs import replacing, write_json
from tasks.progress import Steps
from tasks.report import problems_page

if TYPE_CHECKING:
    from tasks.tracking import StageRun

PROBLEMS = Path("data/problems")
DATA_REPORT = Path("data/report.json")
REPORT = Path("reports/audit.json")
PAGE = Path("reports/problems.html")

Episodes = Mapping[str, Sequence[Trajectory]]
"""By policy; each played the same problems, in the same order."""

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Play the three policies, write page and report; returns the report's path.

    Raises:
        StageError: there is no data, all episodes of a policy are void, or the oracle earns too
            little.
    """
    from tasks.deploy import environment

    problems = choose(PROBLEMS, params.audit)
    data = json.loads(DATA_REPORT.read_text(encoding="utf-8"))
    try:
        with environment(params) as url:
            played = play_all(policies(problems), problems, url, params)
    except EpisodeError as error:
        raise StageError(f"audit: {error}") from error
    report = describe(played, params.audit)
    page = problems_page(
        report,
        problems,
        data=data,
        samples=params.audit.samples,
        profile=params.profile,
    )
    with replacing(PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")
    write_json(REPORT, report)
    run.log_artifact(REPORT)
    run.log_artifact(PAGE)
    run.log_metrics(
        {
            f"audit/{level}_{name}_{score}": numbers[score]
            for level, row in report["levels"].items()
            for name, numbers in row["policies"].items()
            for score in ("reward", "f1")
        }
    )
    if report["unsolved"]:
        raise StageError(complaint(report, params.audit))
    return REPORT


def choose(folder: Path, settings: AuditSettings) -> list[Problem]:
    """Up to `audit.problems` of each difficulty, of all splits.

    Raises:
        StageError: there is no data yet.
    """
    try:
        store = ProblemStore.load(folder)
    except SettingsError as error:
        raise StageError(f"audit: {error}") from error
    chosen: list[Problem] = []
    for level in store.difficulties():
        ids = {level: store.ids(difficulty=level)}
        count = min(settings.problems, len(ids[level]))
        chosen += [store.get(name) for _, name in choose_problems(ids, count, settings.seed)]
    return chosen


def policies(problems: Sequence[Problem]) -> dict[str, Callable[[], Policy]]:
    """The policies by name, best first."""
    return {"oracle": lambda: oracle(problems), "keyword": keyword, "random": random_code}


def play_all(
    made: Mapping[str, Callable[[], Policy]],
    problems: Sequence[Problem],
    url: str,
    params: Params,
) -> dict[str, list[Trajectory]]:
    """Every policy on every problem.

    Raises:
        EpisodeError: the environment is gone.
    """
    from agent.rollout import EpisodeSpec, play

    specs = [
        EpisodeSpec(problem.problem_id, seed=number, difficulty=problem.difficulty)
        for number, problem in enumerate(problems)
    ]
    sessions = min(len(specs), params.env.max_sessions, params.audit.sessions)
    played = {}
    with Steps("audit", len(made)) as steps:
        for number, (name, make) in enumerate(made.items(), 1):
            played[name] = play(make(), url, specs, sessions=sessions)
            steps.done(number, name)
    return played


def describe(played: Episodes, settings: AuditSettings) -> dict[str, Any]:
    """The report: means by difficulty and policy, and the problems that the oracle cannot earn.

    Raises:
        StageError: a policy has no episode of a difficulty that is not void.
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
        "min_oracle": settings.min_oracle,
        "unsolved": {
            episode.problem_id: episode.reward
            for episode in played["oracle"]
            if episode.reward is not None and episode.reward < settings.min_oracle
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
            f"audit: every episode of {name} at {level} is void, the first: {episodes[0].void}; "
            "look at the environment's log"
        )
    return {
        "episodes": len(valid),
        "void": len(episodes) - len(valid),
        "reward": fmean(episode.reward or 0.0 for episode in valid),
        "f1": fmean(episode.evidence.f1 if episode.evidence else 0.0 for episode in valid),
        **{part: fmean(episode.components[part] for episode in valid) for part in COMPONENTS},
    }


def complaint(report: Mapping[str, Any], settings: AuditSettings) -> str:
    """One message: how many problems nobody can earn, the first of them, and what to look at."""
    unsolved = sorted(report["unsolved"].items(), key=lambda item: item[1])
    named = ", ".join(f"{name} ({reward:.2f})" for name, reward in unsolved[:5])
    more = ", ..." if len(unsolved) > 5 else ""
    return (
        f"audit: {len(unsolved)} of {sum(row['problems'] for row in report['levels'].values())} "
        f"problems give a policy that knows the gold evidence less than {settings.min_oracle:g} "
        f"(audit.min_oracle): {named}{more}. Look at them in {PAGE}: gold too short for "
        "rewards.min_span_chars, papers longer than env.limits.child_context_chars, or too few "
        "turns and frames for their facts"
    )
