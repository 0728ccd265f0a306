"""Compare the step time of a training in one process with that in several.

    python -m benchmarks.ranks [--root DIR] [--processes 1 2] [--steps 8] [--repeats 3]

Each run is the stage `train` in its own folder, on the data and the base of `--root`. The numbers
of processes take turns in each repeat. A step is the mean over a run without its first step;
medians of the repeats are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import pandas as pd

from benchmarks.trained import train

PARTS = {
    "step": "train/step_seconds",
    "playing": "train/rollout_seconds",
    "gradients": "train/gradient_seconds",
}
"""Columns of reports/train.parquet by the part of a step."""


def seconds_of(folder: Path) -> dict[str, float]:
    """Mean seconds of a run's steps after the first, by part."""
    rows = pd.read_parquet(folder / "reports/train.parquet")[1:]
    return {part: float(rows[column].mean()) for part, column in PARTS.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder of a finished run")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    measured: dict[int, list[dict[str, float]]] = {count: [] for count in options.processes}
    root = options.root.resolve()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.steps} steps")
    with tempfile.TemporaryDirectory(prefix="rlm-ranks-") as name:
        for repeat in range(options.repeats):
            for count in options.processes:
                folder = Path(name) / f"{repeat}-{count}"
                started = time.monotonic()
                train(folder, root, [f"train.steps={options.steps}", f"train.processes={count}"])
                found = seconds_of(folder) | {"whole stage": time.monotonic() - started}
                measured[count].append(found)
                print(count, {part: round(value, 2) for part, value in found.items()}, flush=True)
    print(f"\n| processes | {' | '.join([*PARTS, 'whole stage'])} |\n|{'---|' * (len(PARTS) + 2)}")
    for count, runs in measured.items():
        medians = (statistics.median(run[part] for run in runs) for part in runs[0])
        print(f"| {count} | {' | '.join(f'{value:.2f} s' for value in medians)} |")


if __name__ == "__main__":
    main()
