"""Compare what teaches a model of 135 M parameters: `python -m benchmarks.small_model`.

Each arm starts from the bare model and plays the same test problems, greedily and sampled.
`demonstrations` is a base that was shown each of them once (`smollm2`, or `--profile faq`), `GRPO`
what the stage `train` makes of it, and `more demonstrations` was shown each of them twice; from
there, `GRPO, twice` goes on. `alone` has no children: its root reads the ranked passages itself, in
demonstrations and in GRPO. Lines of code without a model stand in the same table.

Each result is appended to a file at once and not made again, and a training that was killed goes
on. The files beside this module are committed, and `--draw` prints their tables for
docs/experiments.md.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch

from agent.demonstrations import keyed_plan
from agent.evaluation.statistics import Bootstrap
from agent.policies import baselines
from agent.policies.base import Policy
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from env import variables
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from tasks import paths
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.evaluate import choose
from tasks.tracking.lineage import commit
from tasks.training.demonstrate import keyed

PROBLEMS = 210
"""Test problems."""
MOST = 12
"""Passages of a line that only ranks, at most."""
SOURCE = Path(__file__).resolve().parent.parent
COPIED = ("params.yaml", "profiles", "data", "models/base")
ONCE, TWICE = ["warmstart.sft.epochs=1"], ["warmstart.sft.epochs=2"]
ALONE = [
    *ONCE,
    "warmstart.sft.reader_passages=0",
    "env.limits.max_depth=0",
    # Room for the printed passages.
    "env.limits.observation_chars=3000",
    *(f"{stage}.generation.max_frame_tokens=1536" for stage in ("gate", "train", "evaluate")),
]
"""Settings of a root that reads the passages itself."""


@dataclass(frozen=True)
class Arm:
    """A base, and what GRPO makes of it."""

    base: Sequence[str] = tuple(ONCE)
    """Settings of the base and of the environment."""
    grpo: Sequence[str] | None = None
    """Settings of the training; None for the base as it is."""
    folder: str = "base"
    """Name of the base's folder."""


ARMS = {
    "demonstrations": Arm(),
    "GRPO": Arm(grpo=()),
    "more demonstrations": Arm(TWICE, folder="more"),
    "GRPO, twice": Arm(TWICE, (), "more"),
    "alone, demonstrations": Arm(ALONE, folder="alone"),
    "alone, GRPO": Arm(ALONE, (), "alone"),
}
MODES = {"greedy": 0.0, "sampled": 1.0}
"""Temperatures."""
SCORES = {"f1": "F1", "reward": "reward"}
BOOTSTRAP = Bootstrap(resamples=10_000, seed=0)

Row = dict[str, Any]


@dataclass(frozen=True)
class SmallModelWork:
    """Folder and sizes of the comparison."""

    folder: Path
    results: Path
    problems: int
    profile: str
    sets: Sequence[str]
    """Settings of every arm."""
    modes: Sequence[str] = tuple(MODES)

    def find(self, **key: Any) -> Row | None:
        """The result with these values, if it is known."""
        rows = read_results(self.results)
        return next((row for row in rows if all(row.get(k) == key[k] for k in key)), None)

    def add(self, row: Row, problems: Sequence[Problem]) -> None:
        """Append a result on these problems, with its commit and date."""
        row |= {"collections": [problem.collection_id for problem in problems]}
        row |= {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
        with gzip.open(self.results, "at") as stream:
            stream.write(json.dumps(row) + "\n")
        print(f"{time.strftime('%H:%M')} {row['arm']}, seed {row['seed']}", flush=True)


def read_results(path: Path) -> list[Row]:
    """Results in a file, one JSON object a line; empty if it doesn't exist."""
    if not path.exists():
        return []
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]


def train(work: SmallModelWork, folder: Path, root: Path, sets: Sequence[str]) -> Params:
    """Train in `folder`, from the data and the base of `root`; it becomes the working directory.

    A training that was killed goes on.

    Args:
        work: of the comparison.
        folder: where the stage runs.
        root: holds params.yaml, profiles/, data/ and models/base.
        sets: `section.key=value`.

    Returns:
        The settings of the training.

    Raises:
        CalledProcessError: a stage failed and has said why.
    """
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        for name in COPIED:
            source, target = root / name, part / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        part.rename(folder)
    run_stages(work, folder, sets, ["train"])
    os.chdir(folder)
    return resolve(work.profile, sets)


def run_stages(
    work: SmallModelWork, folder: Path, sets: Sequence[str], stages: Sequence[str]
) -> None:
    """Run stages of this source in a folder, under these settings.

    Raises:
        CalledProcessError: a stage failed and has said why.
    """
    environment = os.environ | {"PYTHONPATH": variables.python_path()}
    run = partial(subprocess.run, cwd=folder, env=environment, check=True)
    words = [word for text in sets for word in ("--set", text)]
    for stage in (["resolve", "--profile", work.profile, *words], *([name] for name in stages)):
        run([sys.executable, "-m", "flows.pipeline", *stage])


def measured(work: SmallModelWork, arm: str, seed: int) -> None:
    """Make an arm and play the test problems with it, unless its result is known."""
    if work.find(arm=arm, seed=seed):
        return
    chosen = ARMS[arm]
    seeds = [f"warmstart.sft.seed={seed}", f"train.seed={seed}"]
    sets = [*work.sets, *chosen.base, *seeds]
    root = work.folder / f"seed-{seed}" / chosen.folder
    seconds = _make_base(work, root, sets)
    row: Row = {"arm": arm, "seed": seed, "seconds": seconds}
    if chosen.grpo is None:
        os.chdir(root)
        params, adapter = resolve(work.profile, sets), None
    else:
        folder = root.parent / arm.replace(",", "").replace(" ", "-")
        params, adapter = train(work, folder, root, [*sets, *chosen.grpo]), paths.TRAINED["lora"]
        steps = json.loads(pd.read_parquet(paths.TRAIN_ROWS).to_json(orient="records"))
        row |= {"seconds": sum(step["train/step_seconds"] for step in steps), "steps": steps}
    specs = choose(paths.TEST, work.problems, params.evaluate.seed)
    with local_server(params, data=paths.PROBLEMS) as url:
        for mode in work.modes:
            row[mode] = played(loaded(params, MODES[mode], adapter), url, specs)
    work.add(row, _problems(work, params))


def _make_base(work: SmallModelWork, root: Path, sets: Sequence[str]) -> float:
    """Data and a base of these settings in a folder, and the seconds of the warm start."""
    took = root / "seconds"
    if not took.exists():
        for linked in ("params.yaml", "profiles", "data/faq"):
            (root / linked).parent.mkdir(parents=True, exist_ok=True)
            if (SOURCE / linked).exists() and not (root / linked).exists():
                (root / linked).symlink_to(SOURCE / linked)
        run_stages(work, root, sets, ["prepare"])
        began = time.monotonic()
        run_stages(work, root, sets, ["warmstart"])
        took.write_text(str(time.monotonic() - began))
    return float(took.read_text())


def loaded(params: Params, temperature: float, adapter: Path | None) -> TransformersPolicy:
    """The base of the working directory, with this adapter or else its own."""
    torch.set_num_threads(params.threads)
    settings = params.evaluate.generation.model_copy(update={"temperature": temperature})
    return TransformersPolicy(*load_model(paths.BASE, adapter=adapter), settings)


def played(policy: Policy, url: str, specs: Sequence[EpisodeSpec]) -> dict[str, list[float]]:
    """F1, reward and tokens of each problem. A void episode would end the comparison."""
    episodes = play(policy, url, specs, sessions=64)
    if reason := next((one.void for one in episodes if one.void), None):
        raise SystemExit(f"small_model: {reason}")
    turns = [[t for frame in one.frames.values() for t in frame.turns] for one in episodes]
    return {
        "f1": [round(one.metrics.f1, 4) for one in episodes if one.metrics],
        "reward": [round(one.reward or 0.0, 4) for one in episodes],
        "tokens": [
            float(sum(len(t.prompt_ids) + len(t.sampled_ids) for t in some)) for some in turns
        ],
    }


def _problems(work: SmallModelWork, params: Params, split: str = "test") -> list[Problem]:
    store = ProblemStore.load(paths.PROBLEMS)
    specs = choose(paths.PROBLEMS / f"{split}.parquet", work.problems, params.evaluate.seed)
    return [store.get(spec.problem_id) for spec in specs]


def lines(work: SmallModelWork) -> None:
    """Measure code without a model on the same problems, unless it is known."""
    if work.find(arm="keyword search"):
        return
    os.chdir(work.folder / "seed-0" / "base")
    params = resolve(work.profile, work.sets)
    tuned = _problems(replace(work, problems=60), params, "validation")
    test = _problems(work, params)

    def first(most: int, rank: str) -> Callable[[Problem], Any]:
        env = params.env.model_copy(update={"rank": rank})
        return lambda problem: [
            {"paper_id": paper_id, "text": text}
            for paper_id, text in keyed_plan.ranked(problem, most, env, params.rewards)
        ]

    def mean(most: int, answers: Sequence[Sequence[Any]]) -> float:
        parts = zip(tuned, answers, strict=True)
        return fmean(baselines.f1(problem, answer[:most]) for problem, answer in parts)

    arms: dict[str, Callable[[Problem], Any]] = {"keyword search": baselines.keyword_search}
    for rank in dict.fromkeys(["bm25", params.env.rank]):
        answers = [first(MOST, rank)(problem) for problem in tuned]
        best = max(range(1, MOST + 1), key=partial(mean, answers=answers))
        arms[f"{rank}, first {best}"] = first(best, rank)
    plan: dict[str, Any] = {"keyed": keyed(params), "env": params.env, "rewards": params.rewards}
    arms["plan without readers"] = partial(keyed_plan.answer, **plan, read=False)
    arms["plan with perfect readers"] = partial(keyed_plan.answer, **plan)
    for name, line in arms.items():
        scores = [round(baselines.f1(problem, line(problem)), 4) for problem in test]
        work.add({"arm": name, "seed": 0, "greedy": {"f1": scores}}, test)


def table(rows: Sequence[Row]) -> str:
    """A line for each arm: means over seeds, with intervals over collections."""
    columns = _columns(rows)
    out = [f"| arm | seeds | {' | '.join(columns)} | tokens a right answer |"]
    out.append("|---" * (3 + len(columns)) + "|")
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        cells = [*(_interval(mine, *which) for which in columns.values()), _price(mine)]
        out.append(f"| {arm} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(out)


def differences(rows: Sequence[Row]) -> str:
    """GRPO minus other arms of the same seeds."""
    columns = _columns(rows)
    out = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    trained = dict.fromkeys(row["arm"] for row in rows if row["arm"].startswith("GRPO"))
    for name, arm in itertools.product(trained, ARMS):
        pairs = [
            (a, b)
            for a, b in itertools.permutations(rows, 2)
            if (a["arm"], b["arm"], a["seed"]) == (name, arm, b["seed"])
        ]
        if pairs:
            cells = [
                _cell([np.subtract(a[m][k], b[m][k]) for a, b in pairs], pairs[0][0])
                if all(m in row for pair in pairs for row in pair)
                else "-"
                for m, k in columns.values()
            ]
            out.append(f"| {name} minus {arm} | {' | '.join(cells)} |")
    return "\n".join(out)


def _columns(rows: Sequence[Row]) -> dict[str, tuple[str, str]]:
    """Mode and score of each column, without those that no row has."""
    every = {f"{names} {mode}": (mode, score) for mode in MODES for score, names in SCORES.items()}
    return {n: (m, s) for n, (m, s) in every.items() if any(s in row.get(m, {}) for row in rows)}


def _interval(rows: Sequence[Row], mode: str, score: str) -> str:
    if any(score not in row.get(mode, {}) for row in rows):
        return "-"
    return _cell([np.array(row[mode][score]) for row in rows], rows[0])


def _cell(values: Sequence[np.ndarray], row: Mapping[str, Any]) -> str:
    """Mean over problems and seeds with its interval, and the mean of each seed."""
    estimate = BOOTSTRAP.mean(np.mean(values, axis=0).tolist(), row["collections"])
    each = f" ({', '.join(f'{v.mean():.3f}' for v in values)})" if len(values) > 1 else ""
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]{each}"


def _price(rows: Sequence[Row]) -> str:
    """Tokens that were read and written for each point of greedy F1."""
    if any("tokens" not in row.get("greedy", {}) for row in rows):
        return "-"
    right = sum(sum(row["greedy"]["f1"]) for row in rows)
    tokens = sum(sum(row["greedy"]["tokens"]) for row in rows)
    return f"{tokens / right:,.0f}" if right else "none is right"


def main() -> None:
    """Do what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="smollm2", help="or faq")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--set", nargs="*", default=[], help="settings of every arm")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--draw", action="store_true", help="print what is known, do nothing")
    options = parser.parse_args()
    results = Path(__file__).with_name(f"{options.profile}.jsonl.gz")
    asked = PROBLEMS, options.profile, options.set, options.modes
    work = SmallModelWork(Path("runs", options.profile).resolve(), results, *asked)
    for seed in () if options.draw else options.seeds:
        for arm in options.arms:
            measured(work, arm, seed)
        if seed == options.seeds[0]:
            lines(work)
    if not (rows := read_results(work.results)):
        sys.exit(f"{work.results}: no results yet; leave out --draw")
    print(f"{table(rows)}\n\n{differences(rows)}")


if __name__ == "__main__":
    main()
