"""Accuracy of readers in the world `fields`: what completions say of the benchmarks they are shown.

Neighbours: `agent/nano/plans.py` teaches readers, `tasks/train.py` logs the figures of each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from agent.rollouts.trajectory import Trajectory
from env.problems.fields import BENCHMARK, field_of_benchmark
from env.problems.lexicon import FIELDS, untaught


def reader_metrics(episodes: Iterable[Trajectory], size: int) -> dict[str, float]:
    """Shares of the shown benchmarks whose field a completion says, rightly or wrongly.

    Args:
        episodes: episodes whose frames of kind `llm` are readers.
        size: names of the lexicon.

    Returns:
        `readers/right` and `readers/wrong`; for names that no demonstration showed, also
        `readers/untaught_right` and `readers/untaught_wrong`. Absent without any such name.
    """
    fields, hidden = field_of_benchmark(size), untaught(size)
    counts: Counter[str] = Counter()
    for episode in episodes:
        for frame in episode.frames.values():
            if frame.kind != "llm" or not frame.turns:
                continue
            turn = frame.turns[0]
            said = dict(pairwise(turn.text.split()))
            for name in fields.keys() & BENCHMARK.findall(turn.observation):
                field = said.get(name)
                verdict = "right" if field == fields[name] else "wrong"
                for part in ("", "untaught_") if name in hidden else ("",):
                    counts[f"{part}shown"] += 1
                    counts[f"{part}{verdict}"] += field in FIELDS
    return {
        f"readers/{part}{verdict}": counts[f"{part}{verdict}"] / counts[f"{part}shown"]
        for part in ("", "untaught_")
        for verdict in ("right", "wrong")
        if counts[f"{part}shown"]
    }
