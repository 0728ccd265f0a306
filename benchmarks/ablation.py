"""What each part of the training is worth: `python -m benchmarks.ablation`.

Arms differ in one setting; all start from one data set and one base model, take the same number of
steps, and are scored on the same problems. The first seed is trained at every rate; the rate with
the best sampled F1 on validation problems is the arm's, and the other seeds are trained at that.
What is told of an arm is measured on test problems.

Each run is the stage `train` in a folder of its own; its scores go to a JSONL file
at once, and a run that stands there is not repeated. Prints the tables of all runs there, as
Markdown, for docs/experiments.md. Neighbour: `recursion.py` asks what children are worth.
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
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from scipy import stats

from agent.models import TransformersPolicy, load_model
from agent.rollout import play
from tasks.config import Params, resolve
from tasks.deploy import local_server
from tasks.evaluate import choose
from tasks.train import BASE, RESULT

ARMS: dict[str, list[str]] = {
    "inverse_count": [],
    "full": ["train.inheritance=full"],
    "none (roots only)": ["train.inheritance=none"],
    "local reward": ["train.inheritance=local"],
    "no curriculum": ["train.curriculum.mode=off"],
    "all weights": ["train.method=full"],
}
"""The default is inverse_count with LoRA and the curriculum."""
RATES = {"all weights": [5e-4, 1e-3]}
USUAL_RATES = [2e-3, 4e-3]
SOURCE = Path(__file__).resolve().parent.parent
COPIED = ("params.yaml", "profiles", "data", "models/base")
COLLAPSED = 0.05
"""A run whose mean reward over the last five steps is below this has lost its policy."""

Result = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training. Two runs with equal fields give the same scores."""

    arm: str
    rate: float
    seed: int
    steps: int
    episodes: int
    """Test problems; half as many validation problems."""


def train(folder: Path, root: Path, sets: Sequence[str]) -> Params:
    """Train in a folder of its own, from the data and the base of another.

    Args:
        folder: made anew.
        root: holds params.yaml, profiles/, data/ and models/base.
        sets: `section.key=value`.

    Returns:
        The settings it was trained with; the working directory is then `folder`.

    Raises:
        CalledProcessError: a stage failed; its output was printed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED:
        source, target = root / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
    run_stages(folder, sets, ["train"])
    os.chdir(folder)
    return resolve(overrides=sets)


def run_stages(folder: Path, sets: Sequence[str], stages: Sequence[str]) -> None:
    """Run stages of this source in a folder, under these settings.

    Raises:
        CalledProcessError: a stage failed; its output was printed.
    """
    command = [sys.executable, "-m", "flows.pipeline"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_WAIT_POLICY": "PASSIVE"}
    words = [word for text in sets for word in ("--set", text)]
    for stage in (["resolve", *words], *([name] for name in stages)):
        done = subprocess.run(
            [*command, *stage], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            done.check_returncode()


def measure(run: Run, root: Path, work: Path) -> Result:
    """Train one run and score it."""
    folder = work / f"{run.arm.split()[0]}-{run.seed}-{run.rate:g}-{run.steps}"
    began = time.monotonic()
    settings = [f"train.seed={run.seed}", f"train.steps={run.steps}"]
    params = train(folder, root, [*ARMS[run.arm], *settings, f"train.learning_rate={run.rate}"])
    seconds = time.monotonic() - began
    steps = pd.read_parquet("reports/train.parquet")
    scores = {
        "validation": score(params, "validation", run.episodes // 2),
        "test": score(params, "test", run.episodes),
    }
    return {
        **asdict(run),
        "seconds": round(seconds),
        "last_reward": float(steps["reward"].tail(5).mean()),
        **scores,
    }


def score(params: Params, split: str, episodes: int) -> dict[str, float]:
    """Mean plain F1 of the trained policy on held-out problems, greedy and sampled."""
    specs = choose(Path(f"data/problems/{split}.parquet"), episodes, params.evaluate.seed)
    found = {}
    with local_server(params, data=Path("data/problems")) as url:
        for name, temperature in {"greedy": 0.0, "sampled": 1.0}.items():
            policy = trained_policy(params, temperature)
            played = play(policy, url, specs, sessions=64)
            found[name] = fmean(one.evidence.f1 for one in played if one.evidence)
    return found


def trained_policy(params: Params, temperature: float) -> TransformersPolicy:
    """What the stage `train` left in this folder."""
    torch.set_num_threads(params.threads)
    settings = params.evaluate.generation.model_copy(update={"temperature": temperature})
    result = RESULT[params.train.method]
    lora = params.train.method == "lora"
    model = load_model(BASE, adapter=result) if lora else load_model(result)
    return TransformersPolicy(*model, settings)


def best_rate(arm: str, results: Iterable[Result]) -> float:
    """The rate with the best sampled F1 on validation problems, among runs of one seed."""
    mine = [one for one in results if one["arm"] == arm]
    first = min(one["seed"] for one in mine)
    tried = [one for one in mine if one["seed"] == first]
    return float(max(tried, key=lambda one: one["validation"]["sampled"])["rate"])


def tuning(results: Sequence[Result]) -> str:
    """A line for each arm and rate, of the seed that was trained at every rate."""
    lines = [
        "| arm | rate | seed | validation F1 greedy | sampled | reward of the last five steps |",
        "|---|---|---|---|---|---|",
    ]
    for arm in _arms(results):
        mine = [one for one in results if one["arm"] == arm]
        first = min(one["seed"] for one in mine)
        for one in sorted(mine, key=lambda one: float(one["rate"])):
            if one["seed"] == first:
                valid, last = one["validation"], one["last_reward"]
                end = f"{last:.3f}{', collapsed' if last < COLLAPSED else ''}"
                lines.append(
                    f"| {arm} | {one['rate']:g} | {first} | {valid['greedy']:.3f} | "
                    f"{valid['sampled']:.3f} | {end} |"
                )
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """A line for each arm at its rate: the mean over seeds, its 95 % interval, each seed."""
    lines = ["| arm | rate | steps | seeds | F1 greedy | F1 sampled |", "|---|---|---|---|---|---|"]
    for arm in _arms(results):
        rate = best_rate(arm, results)
        runs = [one for one in results if one["arm"] == arm and one["rate"] == rate]
        runs.sort(key=lambda one: int(one["seed"]))
        figures = [interval([one["test"][m] for one in runs]) for m in ("greedy", "sampled")]
        seeds = ", ".join(str(one["seed"]) for one in runs)
        lines.append(f"| {arm} | {rate:g} | {runs[0]['steps']} | {seeds} | {' | '.join(figures)} |")
    return "\n".join(lines)


def interval(values: Sequence[float]) -> str:
    """Mean, 95 % interval of the mean over seeds (Student's t), and each value."""
    each = ", ".join(f"{value:.3f}" for value in values)
    if len(values) < 2:
        return each
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{fmean(values):.3f} ± {half:.3f} ({each})"


def _arms(results: Iterable[Result]) -> list[str]:
    there = {one["arm"] for one in results}
    return [arm for arm in ARMS if arm in there]


def read(path: Path) -> list[Result]:
    """The runs that a file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def complete(runs: Sequence[Run], file: Path, options: argparse.Namespace) -> None:
    """Do those runs that do not stand in the file yet, `jobs` at once."""
    there = [Run(**{f.name: one[f.name] for f in fields(Run)}) for one in read(file)]
    missing = [run for run in runs if run not in there]
    # A process of its own for each run: it changes its working directory.
    with ProcessPoolExecutor(
        options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        works = [pool.submit(measure, run, options.root, options.work) for run in missing]
        for work in as_completed(works):
            with file.open("a") as stream:
                stream.write(json.dumps(work.result()) + "\n")
            print(json.dumps(work.result()), file=sys.stderr, flush=True)


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="holds data/ and models/base")
    parser.add_argument("--work", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="*", type=float, default=None, help="the same for all")
    parser.add_argument("--steps", type=int, default=24, help="two minutes on two quiet cores")
    parser.add_argument("--episodes", type=int, default=240, help="test problems")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    options.root, options.work = options.root.resolve(), options.work.resolve()
    options.work.mkdir(exist_ok=True)
    file = options.work / "ablation.jsonl"

    def run(arm: str, rate: float, seed: int) -> Run:
        return Run(arm, rate, seed, options.steps, options.episodes)

    def comparable() -> list[Result]:
        equal = (options.steps, options.episodes)
        return [one for one in read(file) if (one["steps"], one["episodes"]) == equal]

    first, *others = options.seeds
    rates = {arm: options.rates or RATES.get(arm, USUAL_RATES) for arm in options.arms}
    complete([run(arm, rate, first) for arm in rates for rate in rates[arm]], file, options)
    tried = comparable()
    complete([run(arm, best_rate(arm, tried), s) for s in others for arm in rates], file, options)
    print(f"{tuning(comparable())}\n\n{table(comparable())}")


if __name__ == "__main__":
    main()
