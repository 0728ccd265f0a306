"""Measure how cost grows with size: `python -m benchmarks.scale [--model DIR] [--repeats 3]`.

It measures the environment alone at several numbers of sessions, played by the scripted expert in
groups of eight on one problem, as in training. It also measures the round trip of a step without
code, and a GRPO step of the nano model at several numbers of episodes. The cost of one episode
must not grow. Sizes are measured in turn, `repeats` times, and medians are printed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.settings import TrainSettings
from agent.training.metrics import trainer_metrics
from benchmarks import taught
from benchmarks.exploits.fields_expert import fields_expert
from env.client import Sessions
from env.models import RLMAction
from env.problems.store import ProblemStore
from tasks.deployment.local import local_server

SESSIONS = (1, 4, 16, 64, 256)
EPISODES = (16, 64, 256)
GROUP = 8
_CHECKED = 2
"""First steps of a run, in which every row is forwarded again to compare log-probabilities."""


def round_trip_ms(url: str, steps: int = 200) -> float:
    """Milliseconds of one step; a repeated `seq` is answered without running code."""
    with Sessions(url, 1) as sessions:
        sessions.reset(0, seed=0).result()
        action = RLMAction(text="no block", seq=0)
        sessions.step(0, action).result()
        started = time.monotonic()
        for _ in range(steps):
            sessions.step(0, action).result()
        return (time.monotonic() - started) / steps * 1000


def environment(url: str, ids: Sequence[str], repeats: int) -> None:
    """Print episodes per second for each number of sessions, over at least 64 episodes."""
    seconds: dict[int, list[float]] = {count: [] for count in SESSIONS}
    frames: dict[int, float] = {}
    for _ in range(repeats):
        for count in SESSIONS:
            specs = groups(ids, max(64, count))
            started = time.monotonic()
            played = play(fields_expert(), url, specs, sessions=count)
            seconds[count].append((time.monotonic() - started) / len(specs))
            frames[count] = sum(len(trajectory.frames) for trajectory in played) / len(specs)
            if lost := sum(trajectory.void is not None for trajectory in played):
                print(f"{lost} void episodes at {count} sessions")
    print("| sessions | ms/episode | episodes/s | frames/s |")
    print("|---|---|---|---|")
    for count in SESSIONS:
        each = statistics.median(seconds[count])
        print(f"| {count} | {each * 1000:.1f} | {1 / each:.1f} | {frames[count] / each:.0f} |")


def groups(ids: Sequence[str], episodes: int) -> list[EpisodeSpec]:
    """Specs of `episodes` episodes, eight on each problem."""
    return [EpisodeSpec(name, seed=k) for name in ids[: episodes // GROUP] for k in range(GROUP)]


def grpo_steps(
    model_folder: Path, url: str, ids: Sequence[str], episodes: int, steps: int
) -> list[dict[str, float]]:
    """The trainer's figures of each step of a new run, without the checked steps."""
    from agent.training.trainer import TreeGRPOTrainer

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
    """Print the seconds of a GRPO step for each number of episodes."""
    print("| episodes | rollout s | gradient s | rollout, ms/episode | gradient, ms/episode |")
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
    options, params = taught.begin(taught.arguments(__doc__))
    ids = ProblemStore.generate(params.prepare.synthetic).ids("train", "medium")
    with local_server(params, data=None) as url:
        print(f"round trip of a step that runs no code: {round_trip_ms(url):.2f} ms\n")
        print(f"The environment alone, median of {options.repeats}:\n")
        environment(url, ids, options.repeats)
        print(f"\nA GRPO step, median of {options.repeats}:\n")
        training(options.model, url, ids, options.repeats)


if __name__ == "__main__":
    main()
