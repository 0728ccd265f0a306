"""What each part of the training is worth: `python -m benchmarks.ablation`.

Arms differ in one setting; all start from one data set and one base model, take the same number of
steps, and are evaluated on the same held-out problems. Each run is the stages `train` and `export`
in a folder of its own; its scores go to a JSONL file at once, and a run that stands there is not
repeated. Prints the table of all runs there, as Markdown, for docs/experiments.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from tasks.config import Params, resolve
from tasks.deploy import local_server
from tasks.evaluate import choose, play_model

ARMS: dict[str, list[str]] = {
    "inverse_count": [],
    "full": ["train.inheritance=full"],
    "none (roots only)": ["train.inheritance=none"],
    "local reward": ["train.inheritance=local"],
    "no curriculum": ["train.curriculum.mode=off"],
    "all weights": ["train.method=full", "train.learning_rate=0.0005"],
}
"""The default is inverse_count with LoRA and the curriculum."""
SOURCE = Path(__file__).resolve().parent.parent
COPIED = ("params.yaml", "profiles", "data", "models/base")
RUN = ("train", "export")

Result = dict[str, Any]


def run(arm: str, seed: int, options: argparse.Namespace) -> Result:
    """Train, export and score one arm with one seed.

    Raises:
        CalledProcessError: a stage failed; its output was printed.
    """
    sets = [*ARMS[arm], f"train.seed={seed}", f"train.steps={options.steps}"]
    sets += [f"train.learning_rate={options.rate}"] if options.rate else []
    folder = options.work / f"{arm.split()[0]}-{seed}-{options.rate or 'default'}"
    shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED:
        source, target = options.root / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    command = [sys.executable, "-m", "flows.pipeline"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_WAIT_POLICY": "PASSIVE"}
    words = [word for text in sets for word in ("--set", text)]
    began = time.monotonic()
    for stage in (["resolve", *words], *([name] for name in RUN)):
        done = subprocess.run(
            [*command, *stage], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            done.check_returncode()
    seconds = time.monotonic() - began
    os.chdir(folder)
    params = resolve(overrides=sets)
    rate = params.train.learning_rate
    scores = score(params, options.episodes)
    steps = pd.read_parquet("reports/train.parquet")
    return {
        "arm": arm,
        "rate": rate,
        "seed": seed,
        "steps": len(steps),
        "episodes": options.episodes,
        "seconds": round(seconds),
        "last_reward": float(steps["reward"].tail(5).mean()),
        **scores,
    }


def score(params: Params, episodes: int) -> dict[str, float]:
    """Mean plain F1 of the merged model, greedy and sampled."""
    specs = choose(Path("data/problems/test.parquet"), episodes, params.evaluate.seed)
    torch.set_num_threads(params.threads)
    generation = params.evaluate.generation
    modes = {"f1_greedy": 0.0, "f1_sampled": 1.0}
    found = {}
    with local_server(params, data=Path("data/problems")) as url:
        for name, temperature in modes.items():
            settings = generation.model_copy(update={"temperature": temperature})
            played = play_model(
                Path("models/merged"), url, specs, settings, sessions=64, label=name
            )
            found[name] = fmean(one.evidence.f1 for one in played if one.evidence)
    return found


def table(results: Iterable[Result]) -> str:
    """A line for each arm and rate: means over seeds, and each seed's figure."""
    arms: dict[tuple[str, float, int], list[Result]] = {}
    for result in results:
        arms.setdefault((result["arm"], result["rate"], result["steps"]), []).append(result)
    lines = ["| arm | rate | steps | seeds | F1 greedy | F1 sampled |", "|---|---|---|---|---|---|"]
    for (arm, rate, steps), runs in arms.items():
        runs.sort(key=lambda one: one["seed"])
        figures = [_figures([one[name] for one in runs]) for name in ("f1_greedy", "f1_sampled")]
        seeds = ", ".join(str(one["seed"]) for one in runs)
        lines.append(f"| {arm} | {rate:g} | {steps} | {seeds} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _figures(values: Sequence[float]) -> str:
    each = ", ".join(f"{value:.3f}" for value in values)
    return f"{fmean(values):.3f} ({each})" if len(values) > 1 else each


def read(path: Path) -> list[Result]:
    """The runs that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="holds data/ and models/base")
    parser.add_argument("--work", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rate", type=float, default=None, help="instead of the arm's own")
    parser.add_argument("--episodes", type=int, default=240, help="held-out problems")
    options = parser.parse_args()
    options.root, options.work = options.root.resolve(), options.work.resolve()
    options.work.mkdir(exist_ok=True)
    file = options.work / "ablation.jsonl"
    for seed in options.seeds:
        for arm in options.arms:
            done = {
                (one["arm"], one["seed"], one["steps"], one["rate"] if options.rate else None)
                for one in read(file)
            }
            if (arm, seed, options.steps, options.rate) in done:
                continue
            result = run(arm, seed, options)
            with file.open("a") as stream:
                stream.write(json.dumps(result) + "\n")
            print(json.dumps(result), file=sys.stderr, flush=True)
    print(table(read(file)))


if __name__ == "__main__":
    main()
