"""Speed of the environment: `python -m benchmarks.environment`.

Episodes of the scripted expert, in groups of eight on one problem as in training, at several
numbers of sessions; and the round trip of a step that runs nothing.
"""

from __future__ import annotations

import os
import time

from agent.rollout import EpisodeSpec, play
from agent.scripted import expert
from env.client import Sessions
from env.models import RLMAction
from env.problems.store import ProblemStore
from tasks.config import resolve
from tasks.deploy import local_server

EPISODES = 128


def _round_trip_ms(url: str, steps: int = 200) -> float:
    """Milliseconds of one step; a repeated `seq` is answered without playing."""
    with Sessions(url, 1) as sessions:
        sessions.reset(0, seed=0).result()
        action = RLMAction(text="no block", seq=0)
        sessions.step(0, action).result()
        started = time.monotonic()
        for _ in range(steps):
            sessions.step(0, action).result()
        return (time.monotonic() - started) / steps * 1000


def main() -> None:
    """Print the table."""
    params = resolve(overrides=["prepare.synthetic.groups={train: 40, validation: 1, test: 1}"])
    problems = ProblemStore.generate(params.prepare.synthetic)
    ids = problems.ids("train", "medium")[: EPISODES // 8]
    specs = [EpisodeSpec(problem_id, seed=k) for problem_id in ids for k in range(8)]
    with local_server(params, data=None) as url:
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print(f"round trip of a step that runs nothing: {_round_trip_ms(url):.2f} ms")
        print("sessions  episodes/s  frames/s  void")
        for count in (1, 8, 32, 64, 128):
            started = time.monotonic()
            played = play(expert(), url, specs, sessions=count)
            seconds = time.monotonic() - started
            frames = sum(len(trajectory.frames) for trajectory in played)
            void = sum(trajectory.void is not None for trajectory in played)
            print(f"{count:8}  {len(played) / seconds:10.1f}  {frames / seconds:8.1f}  {void:4}")


if __name__ == "__main__":
    main()
