"""GRPO on trees of agents: the whole algorithm on one page.

    python -m examples.grpo_loop --steps 3

The model answers questions about papers that its prompt does not contain. It writes Python, the
environment runs it, and that code may call the model again on some of the papers. So an episode
is a tree: a root agent, and the children that its code opened. One step of GRPO:

1. Draw problems. Each is played by a group of episodes that differ in their seeds alone.
2. Play all episodes with the current weights. The environment returns one reward for each tree.
3. Compute each tree's advantage: its reward minus its group's mean, over the deviation.
4. Make one row for each agent: its tokens, a mask of those it wrote, its tree's advantage, and a
   weight. The root weighs 1, and k siblings share the weight of their parent.
5. Take one optimizer step along the policy gradient of all rows.

`play_step` does 1 and 2. `TreeGRPOTrainer` does 3 to 5: it is TRL's `GRPOTrainer` with a rollout
that returns trees instead of completions. `show_rows` prints what 3 and 4 make of one tree.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from agent.nano.lessons import ReadingLessons
from agent.nano.sizes import NanoSettings
from agent.nano.teaching import teach
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import EpisodeSpec, play
from agent.rollouts.trajectory import Trajectory
from agent.settings import GenerationSettings, TrainSettings
from agent.training.batching import make_rows
from agent.training.groups import groups_for
from agent.training.trainer import TreeGRPOTrainer
from env import variables
from env.client import Sessions
from env.problems.fields import SyntheticSettings, generate
from env.problems.schema import Problem


def main() -> None:
    """Get a base model, then train it."""
    parser = argparse.ArgumentParser(description="GRPO on trees of agents, on one page.")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--base", type=Path, help="model folder; without it one is taught")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a model this small gains nothing from more
    problems = [p for p in generate(SyntheticSettings()) if p.split == "train"]
    model, tokenizer = load_model(options.base) if options.base else teach_base()
    settings = TrainSettings(
        steps=options.steps, problems_per_step=8, group_size=8, learning_rate=5e-3, warmup_steps=0
    )
    # A base taught for a minute is unsure.
    train(model, tokenizer, settings, GenerationSettings(temperature=0.6), problems)


def train(
    model: Any,
    tokenizer: Any,
    settings: TrainSettings,
    generation: GenerationSettings,
    problems: Sequence[Problem],
) -> list[float]:
    """Train an adapter on the easy problems; return the mean reward of each step."""
    # Every step plays the same few problems, so that the rewards of two steps can be compared.
    specs = [EpisodeSpec(p.problem_id) for p in problems if p.difficulty == "easy"]
    easy = {"easy": specs[: settings.problems_per_step]}
    levels, size = ["easy"] * settings.problems_per_step, settings.group_size
    rewards: list[float] = []

    def play_step(live_model: Any, step: int) -> list[list[Trajectory]]:
        drawn = groups_for(step, levels, easy, settings)
        policy = TransformersPolicy(live_model, tokenizer, generation)
        # All trees at once: a batch of the policy is every agent that waits for its next turn.
        trees = play(policy, sessions, list(chain(*drawn)), sessions=sessions.count)
        rewards.append(fmean(tree.reward or 0.0 for tree in trees))
        print(f"step {step}: mean reward {rewards[-1]:.3f}", flush=True)
        groups = [trees[first : first + size] for first in range(0, len(trees), size)]
        if step == 1:
            show_rows(groups, settings)
        return groups

    with (
        environment() as url,
        Sessions(url, len(levels) * size) as sessions,
        tempfile.TemporaryDirectory() as folder,
    ):
        trainer = TreeGRPOTrainer(
            model,
            tokenizer,
            settings,
            output_dir=Path(folder),
            temperature=generation.temperature,
            rollout=play_step,
            on_step=lambda step, logs: None,
            state=dict,
        )
        trainer.train()
    return rewards


def teach_base() -> tuple[Any, Any]:
    """Build a model of 0.66 million parameters and teach it by mediocre demonstrations.

    GRPO reinforces what a model sometimes does right, so the base must know all moves.
    """
    print("teaching a base model: 300 supervised steps")
    settings = NanoSettings(steps=300, min_steps=300)

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        if step % 50 == 0:
            print(f"step {step} of {settings.steps}", flush=True)

    taught = teach(settings, ReadingLessons(settings, size=512), on_step)
    return taught.model, taught.tokenizer


def show_rows(groups: Sequence[Sequence[Trajectory]], settings: TrainSettings) -> None:
    """Print the rows of the largest tree, as the loss gets them."""
    trees = [tree for group in groups for tree in group]
    largest = max(range(len(trees)), key=lambda index: len(trees[index].frames))
    for row in make_rows(groups, settings).rows:
        if row.tree == largest:
            name = f"child {row.frame}" if row.frame else "root   "
            signal = f"advantage {row.advantage:+.2f} x weight {row.weight:.2f}"
            print(f"  {name}  {signal} on {row.tokens} of {len(row.ids_T)} tokens")


@contextmanager
def environment() -> Iterator[str]:
    """Serve the environment in its own process; it generates the same problems, with their gold."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = f"-m env.server.app --until-eof --host 127.0.0.1 --port {port}".split()
    # The server stops when its standard input closes, even if this process is killed.
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, variables.SETTINGS: "", variables.DATA: ""},
        stdin=subprocess.PIPE,
    ) as server:
        while server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    main()
