"""Estimate what a training needs on 8, 64 and 512 cards.

    python -m benchmarks.capacity [--cards 8 64 512] [--NAME VALUE ...]
    python -m benchmarks.capacity --measure

The table is arithmetic on the figures that it prints first; each is an option. `--measure` plays
episodes on this machine and prints those of the environment. Every step samples its episodes, then
learns from them, so cards that only sample wait while the learners work.
"""

from __future__ import annotations

import argparse
import math
import pickle
import time
from typing import NamedTuple

HOURS_A_MONTH = 730.0
CARDS = [8, 64, 512]
EPISODES = 128


class Figure(NamedTuple):
    """A number that the estimate starts from."""

    value: float
    meaning: str
    source: str


ASSUMED = "assumed"
FIGURES = {
    "card_sampled": Figure(2500, "tokens that a card samples a second, 4B model", ASSUMED),
    "card_learned": Figure(20_000, "tokens that a card learns from a second, 4B model", ASSUMED),
    "episodes": Figure(64, "episodes of a step for each card", ASSUMED),
    "sampled": Figure(4000, "tokens sampled in an episode", ASSUMED),
    "learned": Figure(16_000, "tokens of an episode that the loss reads", ASSUMED),
    "learners": Figure(8, "cards that learn: ranks of one host", "train.processes"),
    "host_cards": Figure(8, "cards of a host", ASSUMED),
    "adapter_mb": Figure(130, "MB of an adapter in fp32, 4B model, r 16", ASSUMED),
    "version_mb": Figure(8000, "MB of a registered model, 4B in 16 bit", ASSUMED),
    "network_mb": Figure(1200, "MB that a host sends a second", ASSUMED),
    "s3_mb": Figure(200, "MB that a host sends to S3 a second", ASSUMED),
    "steps": Figure(200, "steps of a run", ASSUMED),
    "push_every": Figure(5, "steps from one pushed checkpoint to the next", "train.push_every"),
    "in_use": Figure(0.5, "share of a month in which a run goes on", ASSUMED),
    "server_sessions": Figure(256, "sessions of an environment server", "env.max_sessions"),
    "server_episodes": Figure(
        75, "episodes that a server on two cores plays a second", "--measure"
    ),
    "proxy_sessions": Figure(8192, "sessions of a proxy", "tasks/deployment/haproxy.cfg"),
    "wire_kb": Figure(6.6, "kB of an episode between trainer and server", "--measure"),
    "tree_kb": Figure(2.9, "kB of an episode's record without its tokens", "--measure"),
    "token_b": Figure(12, "bytes of a token in such a record", "--measure"),
    "exchange_mb": Figure(75, "MB of records that a rank takes in a second", "--measure"),
    "points": Figure(80, "metric points of a step", "reports/train.parquet"),
    "point_b": Figure(400, "bytes of a metric point in PostgreSQL", "benchmarks.metrics"),
    "files_mb": Figure(25, "MB of a run's files in S3 besides models", "benchmarks.cluster"),
}


class Estimate(NamedTuple):
    """Needs of a training on some cards."""

    cards: int
    seconds: dict[str, float]
    """Seconds of a step, by part."""
    rows: dict[str, str]
    """Cells of the table, by name of their row."""


def estimate(cards: int, given: dict[str, float]) -> Estimate:
    """Estimate the needs of a training.

    Args:
        cards: number of cards.
        given: value of each of `FIGURES`.
    """
    f = argparse.Namespace(**given)
    learners = min(cards, int(f.learners))
    players = cards - learners or cards  # on one host, the same cards do both in turn
    hosts = math.ceil(cards / f.host_cards)
    episodes = f.episodes * cards
    tree_mb = f.tree_kb / 1e3 + f.learned * f.token_b / 1e6
    checkpoint_mb = 3 * f.adapter_mb  # with two moments of the optimizer
    seconds = {
        "sampling": episodes * f.sampled / (players * f.card_sampled),
        "learning": episodes * f.learned / (learners * f.card_learned),
        "exchange of records": episodes * tree_mb / f.exchange_mb if learners > 1 else 0.0,
        "adapter to hosts": (hosts - 1) * f.adapter_mb / f.network_mb,
        "checkpoint to S3": checkpoint_mb / f.s3_mb / f.push_every,
    }
    step_s = sum(seconds.values())
    longest = max(seconds, key=seconds.__getitem__)
    rate = episodes / seconds["sampling"]
    by_sessions = math.ceil(episodes / f.server_sessions)
    by_rate = math.ceil(rate / f.server_episodes)
    runs = HOURS_A_MONTH * 3600 * f.in_use / (f.steps * step_s)
    stored = runs * (f.version_mb + f.files_mb) / 1e6
    return Estimate(
        cards,
        seconds,
        {
            "episodes in flight": f"{episodes:,.0f}",
            "seconds of a step": f"{step_s:,.0f}",
            "of them sampling, learning": f"{seconds['sampling']:,.0f}, {seconds['learning']:,.0f}",
            "of them exchange, adapters, checkpoints": ", ".join(
                f"{s:,.1f}" for s in list(seconds.values())[2:]
            ),
            "environment servers": f"{max(by_sessions, by_rate)} (by sessions {by_sessions}, by "
            f"speed {by_rate})",
            "proxies": f"{math.ceil(episodes / f.proxy_sessions)}",
            "environment's network, Mbit/s": f"{rate * f.wire_kb * 8 / 1e3:,.1f}",
            "records that a rank takes in a step, GB": f"{episodes * tree_mb / 1e3:,.1f}",
            "metric points a minute": f"{f.points * 60 / step_s:,.1f}",
            "runs a month": f"{runs:,.0f}",
            "storage a month, TB": f"{stored:,.2f}",
            "database a month, MB": f"{runs * f.steps * f.points * f.point_b / 1e6:,.0f}",
            "bottleneck": f"{longest}, {seconds[longest] / step_s:.0%} of a step",
        },
    )


def table(estimates: list[Estimate]) -> str:
    """Markdown table with a column for each number of cards."""
    head = "| estimate | " + " | ".join(f"{e.cards} cards" for e in estimates) + " |"
    lines = [head, "|---" * (len(estimates) + 1) + "|"]
    for name in estimates[0].rows:
        lines.append(f"| {name} | " + " | ".join(e.rows[name] for e in estimates) + " |")
    return "\n".join(lines)


def measure() -> dict[str, float]:
    """The environment's figures on this machine: the expert on two servers behind HAProxy."""
    from agent.rollouts.engine import play
    from agent.rollouts.trajectory import Trajectory
    from benchmarks.exploits.fields_expert import fields_expert
    from benchmarks.scale import groups
    from env.problems.store import ProblemStore
    from tasks.config import resolve
    from tasks.deployment.local import RUN, local_server
    from tasks.deployment.replicas import local_replicas, statistics

    few = "prepare.synthetic.collections={train: 40, validation: 1, test: 1}"
    specs = groups(
        ProblemStore.generate(resolve(overrides=[few]).prepare.synthetic).ids("train", "medium"),
        EPISODES,
    )
    with local_server(resolve(overrides=[few]), data=None) as url:
        play(fields_expert(), url, specs[:8], sessions=8)
        started = time.monotonic()
        played: list[Trajectory] = play(fields_expert(), url, specs, sessions=EPISODES)
        seconds = time.monotonic() - started
    with local_replicas(resolve(overrides=[few, "deploy.replicas=2"]), data=None) as url:
        control = max(RUN.glob("haproxy-*.sock"), key=lambda path: path.stat().st_mtime)
        play(fields_expert(), url, specs, sessions=EPISODES)
        [backend] = [
            row
            for row in statistics(control)
            if (row["pxname"], row["svname"]) == ("sessions", "BACKEND")
        ]
        moved = int(backend["bin"]) + int(backend["bout"])
    turns = [turn for tree in played for frame in tree.frames.values() for turn in frame.turns]
    tokens = sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in turns)
    bare = len(pickle.dumps(played))
    for turn in turns:  # as many tokens as a model writes, whose ids and log-probabilities differ
        turn.sampled_ids = [1000 + place for place in range(300)]
        turn.logprobs = [-1.0 / (1 + place) for place in range(300)]
    full = pickle.dumps(played)
    started = time.monotonic()
    pickle.loads(full)
    read_s = time.monotonic() - started
    return {
        "server_episodes": len(specs) / seconds,
        "wire_kb": moved / len(specs) / 1e3,
        "tree_kb": (bare - 10 * tokens) / len(specs) / 1e3,
        "token_b": (len(full) - bare) / (300 * len(turns)),
        "exchange_mb": len(full) / read_s / 1e6,
    }


def main() -> None:
    """Print the figures and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cards", type=int, nargs="+", default=CARDS)
    parser.add_argument("--measure", action="store_true", help="measure the environment here")
    for name, figure in FIGURES.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=float,
            default=figure.value,
            help=f"{figure.meaning} (%(default)g; {figure.source})",
        )
    options = parser.parse_args()
    if options.measure:
        for name, value in measure().items():
            print(f"{name:16} {value:10.4g}  {FIGURES[name].meaning}")
        return
    given = {name: getattr(options, name) for name in FIGURES}
    if wrong := [name for name, value in given.items() if not 0 < value < math.inf]:
        parser.error(f"{', '.join(wrong)}: not a number above 0")
    if min(options.cards) < 1:
        parser.error("cards: not above 0")
    print("| figure | value | source |\n|---|---|---|")
    for name, figure in FIGURES.items():
        source = figure.source if given[name] == figure.value else "given"
        print(f"| {figure.meaning} | {given[name]:,g} | {source} |")
    print("\nAn estimate, computed from these figures; no such cluster has run.\n")
    print(table([estimate(cards, given) for cards in options.cards]))


if __name__ == "__main__":
    main()
