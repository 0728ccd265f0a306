"""Measure what can be demonstrated: `python -m benchmarks.demonstrations [--profile papers]`.

The demonstrator plays training problems of each level on a real server, by the plan of the settings
(`--set warmstart.sft.plan=keyed`). A problem is shown if the
answer has an F1 of at least 0.99. Turns and tokens are means of an episode, by the server's count.
Problems come from `prepare.source`, for example own files with `--profile documents`. Reasons why
problems are not shown follow the table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from agent.policies.demonstrator import Demonstrator
from agent.policies.reading_plan import LEAST_F1
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from benchmarks.arena import SESSIONS
from env.problems.schema import Problem, to_row
from tasks.config import resolve
from tasks.demonstrate import fault, keyed
from tasks.deployment.local import local_server
from tasks.params import Params
from tasks.prepare import read_source, write_parquet

HEADS = ("source", "level", "problems", "shown", "F1", "reward", "turns", "tokens")


def name_of(params: Params) -> str:
    """Source of the problems, and the world of generated ones."""
    source = params.prepare.source
    return f"{source} ({params.prepare.synthetic.world})" if source == "synthetic" else source


def choose(params: Params, per_level: int) -> list[Problem]:
    """The first training problems of each level."""
    counts: Counter[str] = Counter()
    chosen = []
    for problem in read_source(params).problems:
        if problem.split == "train" and counts[problem.difficulty] < per_level:
            counts[problem.difficulty] += 1
            chosen.append(problem)
    return chosen


def demonstrate(params: Params, problems: Sequence[Problem], slips: float) -> list[Trajectory]:
    """One episode of each problem, on a server that serves these alone.

    Raises:
        RuntimeError: an episode is void.
    """
    specs = [EpisodeSpec(problem.problem_id, seed=n) for n, problem in enumerate(problems)]
    policy = Demonstrator(
        *(problems, params.env),
        slips=slips,
        keyed=keyed(params) if params.warmstart.sft.plan == "keyed" else None,
        rewards=params.rewards,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(Path(folder) / "train.parquet", [to_row(problem) for problem in problems])
        with local_server(params, data=Path(folder)) as url:
            episodes = play(policy, url, specs, sessions=min(SESSIONS, len(specs)))
    if reason := next((episode.void for episode in episodes if episode.void), None):
        raise RuntimeError(reason)
    return episodes


def row(source: str, level: str, problems: int, episodes: Sequence[Trajectory]) -> str:
    """Row of a level as Markdown.

    Args:
        source, level: its first cells.
        problems: problems of the level, with those that are not played.
        episodes: played episodes.
    """
    f1 = [episode.metrics.f1 if episode.metrics else 0.0 for episode in episodes]
    figures = (
        f"{sum(one >= LEAST_F1 for one in f1) / problems:.2f}",
        f"{fmean(f1 or [0.0]):.3f}",
        f"{fmean([episode.reward or 0.0 for episode in episodes] or [0.0]):.3f}",
        f"{fmean([episode.counters.turns for episode in episodes] or [0.0]):.1f}",
        f"{fmean([episode.counters.tokens for episode in episodes] or [0.0]):.0f}",
    )
    return f"| {' | '.join((source, level, str(problems), *figures))} |"


def main() -> None:
    """Play the problems, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=20, help="problems of each level")
    parser.add_argument("--profile", default="nano", help="settings: nano, papers, documents, ...")
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument("--slips", type=float, default=0.15, help="share of episodes with a slip")
    options = parser.parse_args()
    params = resolve(options.profile, ["threads=1", *options.set])
    problems = choose(params, options.problems)
    reasons = {problem.problem_id: fault(params, problem) for problem in problems}
    good = [problem for problem in problems if reasons[problem.problem_id] is None]
    episodes = demonstrate(params, good, options.slips) if good else []
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for level, count in sorted(Counter(problem.difficulty for problem in problems).items()):
        played = [episode for episode in episodes if episode.difficulty == level]
        print(row(name_of(params), level, count, played))
    for reason, count in Counter(filter(None, reasons.values())).most_common():
        print(f"\nNot played, {count}: {reason}.")
    for episode in episodes:
        if params.warmstart.sft.plan == "keyed":
            break  # a passage is often longer than the evidence in it
        if episode.metrics is None or episode.metrics.f1 < LEAST_F1:
            print(f"\nNot shown: {episode.problem_id}, F1 {episode.metrics and episode.metrics.f1}")


if __name__ == "__main__":
    main()
