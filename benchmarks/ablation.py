"""Measure the effect of each part of the training: `python -m benchmarks.ablation`.

Arms differ in one setting. All have the same data, base model, number of steps and evaluation
problems. The first seed is trained at every learning rate; the rate with the best sampled F1 on
validation problems is the arm's. The other seeds are trained at that rate, and the reported scores
are on test problems.

Each run is the stage `train` in its own folder. Its scores are appended to a JSONL file at once,
and a run in that file is not repeated. Prints Markdown tables of all runs for
docs/experiments.md. Neighbour: `recursion.py` measures the effect of children.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from scipy import stats

from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from tasks.config import resolve
from tasks.deployment.local import local_server
from tasks.evaluate import choose
from tasks.params import Params
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
"""Mean reward of the last five steps below which a run counts as collapsed."""

AblationResult = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training run; equal fields give equal scores."""

    arm: str
    rate: float
    seed: int
    steps: int
    episodes: int
    """Number of test problems; half as many validation problems."""


def train(folder: Path, root: Path, sets: Sequence[str]) -> Params:
    """Train in `folder`, from the data and the base of `root`; it becomes the working directory.

    Args:
        folder: replaced if it exists.
        root: holds params.yaml, profiles/, data/ and models/base.
        sets: `section.key=value`.

    Returns:
        The settings of the training.

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
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    words = [word for text in sets for word in ("--set", text)]
    for stage in (["resolve", *words], *([name] for name in stages)):
        done = subprocess.run(
            [*command, *stage], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            done.check_returncode()


def measure(run: Run, root: Path, work: Path) -> AblationResult:
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
        "last_reward": float(steps["reward/overall"].tail(5).mean()),
        **scores,
    }


def score(
    params: Params,
    split: str,
    episodes: int,
    load: Callable[[Params, float], TransformersPolicy] | None = None,
) -> dict[str, float]:
    """Mean plain F1 on held-out problems, greedy and sampled, of the trained policy or another.

    Args:
        params: settings of the environment and of the sampling.
        split: split of the problems.
        episodes: number of problems.
        load: loads the policy for a temperature; default: `trained_policy`.
    """
    specs = choose(Path(f"data/problems/{split}.parquet"), episodes, params.evaluate.seed)
    found = {}
    with local_server(params, data=Path("data/problems")) as url:
        for name, temperature in {"greedy": 0.0, "sampled": 1.0}.items():
            policy = (load or trained_policy)(params, temperature)
            played = play(policy, url, specs, sessions=64)
            found[name] = fmean(one.metrics.f1 for one in played if one.metrics)
    return found


def trained_policy(params: Params, temperature: float) -> TransformersPolicy:
    """The policy that the stage `train` left in the working directory."""
    torch.set_num_threads(params.threads)
    settings = params.evaluate.generation.model_copy(update={"temperature": temperature})
    result = RESULT[params.train.method]
    lora = params.train.method == "lora"
    model = load_model(BASE, adapter=result) if lora else load_model(result)
    return TransformersPolicy(*model, settings)


def tried_rates(arm: str, results: Iterable[AblationResult]) -> list[AblationResult]:
    """Runs of an arm's first seed, which is trained at every rate, sorted by rate."""
    mine = [one for one in results if one["arm"] == arm]
    first = min(one["seed"] for one in mine)
    return sorted((one for one in mine if one["seed"] == first), key=lambda one: float(one["rate"]))


def best_rate(arm: str, results: Iterable[AblationResult]) -> float:
    """Rate with the best sampled F1 on validation problems, for the first seed."""
    best = max(tried_rates(arm, results), key=lambda one: float(one["validation"]["sampled"]))
    return float(best["rate"])


def tuning(results: Sequence[AblationResult]) -> str:
    """Table of the first seed: a line for each arm and rate."""
    lines = [
        "| arm | rate | seed | validation F1 greedy | sampled | reward of the last five steps |",
        "|---|---|---|---|---|---|",
    ]
    for one in (one for arm in _arms(results) for one in tried_rates(arm, results)):
        valid, last = one["validation"], one["last_reward"]
        end = f"{last:.3f}{', collapsed' if last < COLLAPSED else ''}"
        lines.append(
            f"| {one['arm']} | {one['rate']:g} | {one['seed']} | {valid['greedy']:.3f} | "
            f"{valid['sampled']:.3f} | {end} |"
        )
    return "\n".join(lines)


def table(results: Sequence[AblationResult]) -> str:
    """Table of the arms at their rates: mean over seeds, its 95 % interval, each seed."""
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
    """Mean with its 95 % interval over seeds (Student's t), and each value."""
    each = ", ".join(f"{value:.3f}" for value in values)
    if len(values) < 2:
        return each
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{fmean(values):.3f} ± {half:.3f} ({each})"


def _arms(results: Iterable[AblationResult]) -> list[str]:
    found = {one["arm"] for one in results}
    return [arm for arm in ARMS if arm in found]


def read_results(path: Path) -> list[AblationResult]:
    """Results in a file; empty if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def complete(runs: Sequence[Run], file: Path, options: argparse.Namespace) -> None:
    """Do the runs that are not in the file yet, `jobs` at a time."""
    known = [Run(**{f.name: one[f.name] for f in fields(Run)}) for one in read_results(file)]
    missing = [run for run in runs if run not in known]
    # One process for each run, since a run changes its working directory.
    with ProcessPoolExecutor(
        options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        works = [pool.submit(measure, run, options.root, options.work) for run in missing]
        for work in as_completed(works):
            with file.open("a") as stream:
                stream.write(json.dumps(work.result()) + "\n")
            print(json.dumps(work.result()), file=sys.stderr, flush=True)


def main() -> None:
    """Do the missing runs, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="holds data/ and models/base")
    parser.add_argument("--work", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--rates", nargs="*", type=float, default=None, help="learning rates of every arm"
    )
    parser.add_argument("--steps", type=int, default=24, help="two minutes on two quiet cores")
    parser.add_argument("--episodes", type=int, default=240, help="test problems")
    parser.add_argument("--jobs", type=int, default=2, help="parallel runs")
    options = parser.parse_args()
    options.root, options.work = options.root.resolve(), options.work.resolve()
    options.work.mkdir(exist_ok=True)
    file = options.work / "ablation.jsonl"

    def run(arm: str, rate: float, seed: int) -> Run:
        return Run(arm, rate, seed, options.steps, options.episodes)

    def comparable() -> list[AblationResult]:
        equal = (options.steps, options.episodes)
        return [one for one in read_results(file) if (one["steps"], one["episodes"]) == equal]

    first, *others = options.seeds
    rates = {arm: options.rates or RATES.get(arm, USUAL_RATES) for arm in options.arms}
    complete([run(arm, rate, first) for arm in rates for rate in rates[arm]], file, options)
    tried = comparable()
    complete([run(arm, best_rate(arm, tried), s) for s in others for arm in rates], file, options)
    print(f"{tuning(comparable())}\n\n{table(comparable())}")


if __name__ == "__main__":
    main()
