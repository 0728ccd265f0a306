"""Compare trainings on episodes of an inexact engine: `python -m benchmarks.engine`.

A stand-in for vLLM (`stand_in.py`) plays with weights that are off by `--noise` of their size, as
an engine with other arithmetic is. So it samples from another policy than the trainer's. Each seed
is trained on episodes of the model itself, and on those of the engine with and without
`train.importance_clip`. All have the same data, base, steps and test problems. Steps have problems
of the levels easy and medium, which take half the time.

Each run is the stage `train` in its own folder. Its scores are appended to a JSONL file at once,
and a run in that file is not repeated. Prints a Markdown table for docs/experiments.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from agent.policies.hf_policy import TransformersPolicy, load_model
from benchmarks.ablation import interval, read_results, score, train
from benchmarks.engine.stand_in import StandIn, running
from tasks.config import resolve
from tasks.params import Params
from tasks.tracking.lineage import folder_hash
from tasks.train import BASE

UNTRAINED, OWN = "untrained base", "own"
"""Arm without a training, and the one without an engine, to which the others are compared."""
ARMS: dict[str, list[str]] = {
    UNTRAINED: [],
    OWN: [],
    "engine, corrected": ["train.importance_clip=2.0"],
    "engine, not corrected": [],
}
EXACT = (UNTRAINED, OWN)
SETS = [
    "train.curriculum={levels: [easy, medium], target: medium}",
    "train.processes=1",  # as with the engine
    "train.evaluate_every=0",
]
MISMATCH = "train/logprob_mismatch_mean"
"""Column of the mean difference of log-probabilities, in nats a token."""
REWARD = "reward/overall"

EngineResult = dict[str, Any]


@dataclass(frozen=True)
class EngineRun:
    """One training; equal fields give equal scores, but for the last digits of batches."""

    arm: str
    seed: int
    steps: int
    noise: float
    episodes: int
    """Number of test problems."""


def measure(run: EngineRun, root: Path, work: Path) -> EngineResult:
    """Train one run and score it; its folder becomes the working directory."""
    began = time.monotonic()
    sets = [*SETS, *ARMS[run.arm], f"train.seed={run.seed}", f"train.steps={run.steps}"]
    folder = work / f"{run.arm.replace(', ', '-').replace(' ', '-')}-{run.seed}-{run.steps}"
    steps = pd.DataFrame({MISMATCH: [], REWARD: []})
    if run.arm == UNTRAINED:
        os.chdir(root)
        params = resolve(overrides=sets)
        test = score(params, "test", run.episodes, load=_untrained)
    else:
        with _engine(run, root) as engine:
            params = train(folder, root, [*sets, *engine])
        steps = pd.read_parquet("reports/train.parquet")
        test = score(params, "test", run.episodes)
    return {
        **asdict(run),
        "seconds": round(time.monotonic() - began),
        "mismatch": [float(value) for value in steps[MISMATCH]],
        "reward": [float(value) for value in steps[REWARD]],
        "test": test,
    }


@contextmanager
def _engine(run: EngineRun, root: Path) -> Iterator[list[str]]:
    """Settings that name the engine of a run, which plays for the duration of the block."""
    if run.arm in EXACT:
        yield []
        return
    base = root / BASE
    length = resolve().train.generation.max_frame_tokens
    server = StandIn(base, f"base-{folder_hash(base)}", length, noise=run.noise)
    with running(server):
        yield ["engine.kind=vllm", f"engine.urls=[{server.url}]", "engine.concurrency=128"]


def _untrained(params: Params, temperature: float) -> TransformersPolicy:
    settings = params.evaluate.generation.model_copy(update={"temperature": temperature})
    return TransformersPolicy(*load_model(BASE), settings)


def table(results: Sequence[EngineResult]) -> str:
    """Table of the arms: F1, its difference to the own engine's by seed, the mismatch."""
    lines = [
        "| arm | seeds | F1 greedy | difference to own | F1 sampled | difference to own | "
        "mean mismatch, nats a token (least to largest step) |",
        "|---|---|---|---|---|---|---|",
    ]
    tests = {(one["arm"], one["seed"]): one["test"] for one in results}
    for arm in [arm for arm in ARMS if any(one["arm"] == arm for one in results)]:
        runs = sorted((one for one in results if one["arm"] == arm), key=lambda one: one["seed"])
        cells = [arm, ", ".join(str(one["seed"]) for one in runs)]
        for mode in ("greedy", "sampled"):
            cells.append(interval([one["test"][mode] for one in runs]))
            differences = [
                one["test"][mode] - tests[OWN, one["seed"]][mode]
                for one in runs
                if arm not in EXACT and (OWN, one["seed"]) in tests
            ]
            cells.append(", ".join(f"{value:+.3f}" for value in differences) or "-")
        off = [value for one in runs for value in one["mismatch"]]
        cells.append(f"{fmean(off):.4f} ({min(off):.4f} to {max(off):.4f})" if off else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Do the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="holds data/ and models/base")
    parser.add_argument("--work", type=Path, default=Path("runs/engine"), help="folder of the runs")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--noise", type=float, default=0.035, help="relative error of a weight")
    parser.add_argument("--episodes", type=int, default=120, help="test problems")
    options = parser.parse_args()
    root, work = options.root.resolve(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    file = work / "engine.jsonl"

    def noise(arm: str) -> float:
        return 0.0 if arm in EXACT else float(options.noise)

    wanted = [
        EngineRun(arm, seed, options.steps, noise(arm), options.episodes)
        for seed in options.seeds
        for arm in options.arms
        if arm != UNTRAINED or seed == options.seeds[0]
    ]

    def known() -> dict[EngineRun, EngineResult]:
        names = [field.name for field in fields(EngineRun)]
        return {EngineRun(**{n: one[n] for n in names}): one for one in read_results(file)}

    for run in [run for run in wanted if run not in known()]:
        row = measure(run, root, work)
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(run, row["seconds"], "s", row["test"], file=sys.stderr, flush=True)
    print(table([row for run, row in known().items() if run in wanted]))


if __name__ == "__main__":
    main()
