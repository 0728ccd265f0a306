"""How cost grows with size: `python -m benchmarks.scale [--model DIR] [--repeats 3]`.

The environment alone, played by the scripted expert at several numbers of sessions, in groups of
eight on one problem as in training; the round trip of a step that runs nothing; and a GRPO step
of the nano model at several numbers of episodes. What has to hold: the cost of one episode does
not grow. Sizes are measured in turn, `repeats` times, and the median is told.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.metrics import trainer_metrics
from agent.models import TransformersPolicy, load_model
from agent.rollout import EpisodeSpec, play
from agent.scripted import expert
from agent.settings import TrainSettings
from agent.trajectory import Trajectory
from env.client import Sessions
from env.models import RLMAction
from env.problems.store import ProblemStore
from tasks.config import resolve
from tasks.deploy import local_server

SESSIONS = (1, 4, 16, 64, 256)
EPISODES = (16, 64, 256)
GROUP = 8
_CHECKED = 2
"""First steps of a run, in which every row is forwarded to compare log-probabilities."""


def round_trip_ms(url: str, steps: int = 200) -> float:
    """Milliseconds of one step; a repeated `seq` is answered without playing."""
    with Sessions(url, 1) as sessions:
        sessions.reset(0, seed=0).result()
        action = RLMAction(text="no block", seq=0)
        sessions.step(0, action).result()
        started = time.monotonic()
        for _ in range(steps):
            sessions.step(0, action).result()
        return (time.monotonic() - started) / steps * 1000


def environment(url: str, ids: Sequence[str], repeats: int) -> None:
    """Print episodes a second by sessions; at least 64 episodes each."""
    seconds: dict[int, list[float]] = {count: [] for count in SESSIONS}
    frames: dict[int, float] = {}
    for _ in range(repeats):
        for count in SESSIONS:
            specs = groups(ids, max(64, count))
            started = time.monotonic()
            played = play(expert(), url, specs, sessions=count)
            seconds[count].append((time.monotonic() - started) / len(specs))
            frames[count] = sum(len(trajectory.frames) for trajectory in played) / len(specs)
            if lost := sum(trajectory.void is not None for trajectory in played):
                print(f"{lost} void episodes at {count} sessions")
    print("| sessions | ms an episode | episodes/s | frames/s |")
    print("|---|---|---|---|")
    for count in SESSIONS:
        each = statistics.median(seconds[count])
        print(f"| {count} | {each * 1000:.1f} | {1 / each:.1f} | {frames[count] / each:.0f} |")


def groups(ids: Sequence[str], episodes: int) -> list[EpisodeSpec]:
    """Specs of so many episodes, eight on each problem."""
    return [EpisodeSpec(name, seed=k) for name in ids[: episodes // GROUP] for k in range(GROUP)]


def grpo_steps(
    model_folder: Path, url: str, ids: Sequence[str], episodes: int, steps: int
) -> list[dict[str, float]]:
    """The trainer's figures of each step of a fresh run, those with a check left out."""
    from agent.trainer import TreeGRPOTrainer

    settings = TrainSettings(
        steps=steps + _CHECKED, problems_per_step=episodes // GROUP, group_size=GROUP
    )
    model, tokenizer = load_model(model_folder, device="cpu")
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, Sessions(url, episodes) as sessions:

        def rollout(live: Any, step: int) -> list[list[Trajectory]]:
            policy = TransformersPolicy(live, tokenizer, settings.generation)
            played = play(policy, sessions, groups(ids, episodes), sessions=episodes)
            return [played[i : i + GROUP] for i in range(0, episodes, GROUP)]

        TreeGRPOTrainer(
            model,
            tokenizer,
            settings,
            output_dir=Path(folder),
            rollout=rollout,
            on_step=lambda step, logs: found.append(trainer_metrics(logs)),
            state=dict,
        ).resume(None)
    return found[_CHECKED:]


def training(model_folder: Path, url: str, ids: Sequence[str], repeats: int) -> None:
    """Print seconds of a GRPO step by episodes."""
    print(
        "| episodes | rollout s | gradient s | rollout, ms an episode | gradient, ms an episode |"
    )
    print("|---|---|---|---|---|")
    for episodes in EPISODES:
        steps = grpo_steps(model_folder, url, ids, episodes, repeats)
        rollout, gradient = (
            statistics.median(step[f"train/{part}_seconds"] for step in steps)
            for part in ("rollout", "gradient")
        )
        print(
            f"| {episodes} | {rollout:.2f} | {gradient:.2f} | {rollout / episodes * 1000:.1f} | "
            f"{gradient / episodes * 1000:.1f} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/base"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not options.model.is_dir():
        parser.error(f"no model in {options.model}: run the stage warmstart (or make full) first")

    import torch

    torch.set_num_threads(options.threads)
    params = resolve(overrides=["prepare.synthetic.groups={train: 40, validation: 1, test: 1}"])
    ids = ProblemStore.generate(params.prepare.synthetic).ids("train", "medium")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} thread(s)")
    with local_server(params, data=None) as url:
        print(f"round trip of a step that runs nothing: {round_trip_ms(url):.2f} ms\n")
        print(f"The environment alone, median of {options.repeats}:\n")
        environment(url, ids, options.repeats)
        print(f"\nA GRPO step, median of {options.repeats}:\n")
        training(options.model, url, ids, options.repeats)


if __name__ == "__main__":
    main()
