"""Compare a recursive policy with agents without children: `python -m benchmarks.recursion`.

Every arm (`arms.py`) is trained with the same data and the same number of episodes. Each base shows
the best plan of its arm equally often. The first seed is trained at two learning rates; the better
one on validation problems is the arm's. As a ceiling, bases that show the arm's best plan alone
answer too. Then all answer test problems over 2 to 48 papers, and readers are asked for each kind
of name. In the control, fields are printed, and the arms are trained once more.

Each result is appended at once to results.jsonl.gz, and what is there is not done again. The
file beside this module is committed: `--draw` draws its figure and prints its tables for
docs/experiments.md. To repeat a comparison, name another file by `--results`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from agent.policies.hf_policy import TransformersPolicy
from benchmarks.fields import PAPERS
from benchmarks.recursion import figure, measure
from benchmarks.recursion.arms import ARMS, BUDGETED, CONTROLLED
from benchmarks.trained import SOURCE, run_stages, score, train
from tasks.config import resolve
from tasks.params import Params
from tasks.tracking.lineage import commit
from tasks.train import BASE

RATES = (2e-3, 4e-3)
INHERITANCES = ("full", "none")
"""Values of `train.inheritance` besides the arms' own, `inverse_count`."""
BUDGETS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Tokens of a tree, as multiples of the expert's."""
BUDGET_PAPERS = 16
"""Papers of the problems with a budget."""
CONTROL = "prepare.synthetic.labels=true"
_CONTROL = "-control"

Row = dict[str, Any]


@dataclass(frozen=True)
class RecursionWork:
    """Folder and sizes of the comparison."""

    folder: Path
    results: Path
    """File of the results, one a line; see `read_results`."""
    steps: int
    problems: int
    validation: int
    commit: str

    def has(self, **key: Any) -> bool:
        """Whether a result with these values is known."""
        known = figure.read_results(self.results)
        return any(all(row.get(name) == key[name] for name in key) for row in known)

    def add(self, row: Row) -> None:
        """Append a result, with its commit and date."""
        row |= {"commit": self.commit, "date": time.strftime("%Y-%m-%d")}
        with gzip.open(self.results, "at") as stream:
            stream.write(json.dumps(row) + "\n")
        print(f"{time.strftime('%H:%M')} {figure.summary(row)}", file=sys.stderr, flush=True)


def base(work: RecursionWork, name: str, seed: int, sets: Sequence[str]) -> Path:
    """Folder with data and a base of these settings; made if it is missing.

    Args:
        work: folder of the comparison.
        name: of the base.
        seed: seed of its weights and lessons.
        sets: settings of the base.
    """
    root = _root(work, name, seed)
    if not (root / BASE).is_dir():
        run_stages(root, [*sets, f"warmstart.nano.seed={seed}"], ["prepare", "warmstart"])
    return root


def controlled(work: RecursionWork, shared: Path, seed: int) -> Path:
    """Folder with a base's weights and data with printed fields; made if it is missing."""
    root = _root(work, f"{shared.name}{_CONTROL}", seed)
    if not (root / BASE).is_dir():
        run_stages(root, [CONTROL], ["prepare"])
        shutil.copytree(shared / BASE, root / BASE)
    return root


def _root(work: RecursionWork, name: str, seed: int) -> Path:
    root = work.folder / f"seed-{seed}" / name
    root.mkdir(parents=True, exist_ok=True)
    for linked in ("params.yaml", "profiles"):
        if not (root / linked).exists():
            (root / linked).symlink_to(SOURCE / linked)
    return root


def trained(work: RecursionWork, arm: str, seed: int, rate: float, control: bool) -> None:
    """Train an arm and measure it, unless its result is known."""
    key: Row = {
        "what": "control" if control else "trained",
        "arm": arm,
        "seed": seed,
        "rate": rate,
        "steps": work.steps,
    }
    if work.has(**key):
        return
    root = _prepared(work, arm, seed, control)
    before = _cpu_s()
    params = _train(work, root, arm, seed, rate)
    steps = pd.read_parquet("reports/train.parquet")
    policy = measure.trained_policy(params)
    work.add(
        key
        | {
            "cpu_s": round(_cpu_s() - before),
            "sampled_tokens": int(steps["train/sampled_tokens"].sum()),
            "validation": score(params, "validation", work.validation),
            "answers": measure.answers(params, measure.trained_policy, work.problems),
            "readers": _readers(params, policy),
        }
    )


def inherited(work: RecursionWork, inheritance: str, seed: int, rate: float) -> None:
    """Train the recursive arm with an inheritance and measure readers, unless it is known."""
    key: Row = {"what": "inheritance", "arm": inheritance, "seed": seed, "rate": rate}
    if work.has(**key):
        return
    root = _prepared(work, "recursive", seed, control=False)
    folder = root.parent / f"inheritance-{inheritance}"
    params = train(folder, root, [*_training(work, seed, rate), f"train.inheritance={inheritance}"])
    policy = measure.trained_policy(params)
    scores = score(params, "validation", work.validation)
    work.add(key | {"validation": scores, "readers": _readers(params, policy)})


def _prepared(work: RecursionWork, arm: str, seed: int, control: bool) -> Path:
    """Folder with the data and the base of an arm."""
    chosen = ARMS[arm]
    root = base(work, f"base-{_slug(arm)}" if chosen.base else "shared", seed, chosen.base)
    return controlled(work, root, seed) if control else root


def _train(work: RecursionWork, root: Path, arm: str, seed: int, rate: float) -> Params:
    """Train an arm in a folder, which becomes the working directory; returns its settings."""
    chosen = ARMS[arm]
    folder = root.parent / f"{_slug(arm)}-{root.name}-{rate:g}"
    data = [CONTROL] if root.name.endswith(_CONTROL) else []
    return train(folder, root, [*chosen.base, *data, *chosen.sets, *_training(work, seed, rate)])


def _training(work: RecursionWork, seed: int, rate: float) -> list[str]:
    """Settings of every training."""
    settings = {"learning_rate": rate, "seed": seed, "steps": work.steps, "evaluate_every": 0}
    return [f"train.{name}={value}" for name, value in settings.items()]


def _readers(params: Params, policy: TransformersPolicy) -> dict[str, dict[str, float]]:
    lexicon = params.prepare.synthetic.lexicon
    return measure.readers(policy.model, policy.chat.tokenizer, lexicon)


def demonstrated(work: RecursionWork, arm: str, plan: str, seed: int) -> None:
    """Measure a base that shows one plan alone, unless its result is known."""
    key: Row = {"what": "demonstrated", "arm": arm, "plan": plan, "seed": seed}
    if work.has(**key):
        return
    sets = ARMS[arm].experts[plan]
    root = base(work, f"expert-{_slug(arm)}-{_slug(plan)}", seed, sets)
    params = _entered(root, [*sets, *ARMS[arm].sets])
    work.add(key | {"answers": measure.answers(params, measure.base_policy, work.problems)})


def before(work: RecursionWork, seed: int) -> None:
    """Measure the shared base, unless its result is known."""
    key: Row = {"what": "base", "arm": "recursive", "seed": seed}
    if work.has(**key):
        return
    params = _entered(base(work, "shared", seed, ()), [])
    found = measure.answers(params, measure.base_policy, work.problems)
    work.add(key | {"answers": found, "readers": _readers(params, measure.base_policy(params))})


def budgeted(work: RecursionWork, arm: str, seed: int, rate: float) -> None:
    """Measure an arm under budgets, unless the results are known."""
    keys: list[Row] = [
        {"what": "budget", "arm": arm, "seed": seed, "budget": budget} for budget in BUDGETS
    ]
    missing = [key for key in keys if not work.has(**key)]
    if not missing:
        return
    root = _prepared(work, arm, seed, control=False)
    folder = root.parent / f"{_slug(arm)}-{root.name}-{rate:g}"
    known = folder.is_dir()
    params = _entered(folder, []) if known else _train(work, root, arm, seed, rate)
    for key in missing:
        found = measure.answers(
            params, measure.trained_policy, work.problems, (BUDGET_PAPERS,), key["budget"]
        )
        work.add(key | {"answers": found})


def best_rate(work: RecursionWork, arm: str, seed: int) -> float:
    """Rate of an arm, as `figure.chosen` chooses it."""
    return float(figure.chosen(figure.read_results(work.results))[arm, seed]["rate"])


def compare(work: RecursionWork, seeds: Sequence[int], arms: Sequence[str]) -> None:
    """Do what is missing, one result at a time; first what the figure shows, of every seed."""
    first = seeds[0]
    for seed in seeds:
        before(work, seed)
        for arm in [arm for arm in arms if ARMS[arm].trained]:
            for rate in RATES if seed == first else [best_rate(work, arm, first)]:
                trained(work, arm, seed, rate, control=False)
    for seed in seeds:
        for arm in arms:
            for plan in ARMS[arm].experts:
                demonstrated(work, arm, plan, seed)
    for seed in seeds:
        for arm in [arm for arm in BUDGETED if arm in arms]:
            budgeted(work, arm, seed, best_rate(work, arm, first))
        for arm in [arm for arm in CONTROLLED if arm in arms]:
            trained(work, arm, seed, best_rate(work, arm, first), control=True)
    for seed in seeds:
        for inheritance in INHERITANCES if "recursive" in arms else ():
            inherited(work, inheritance, seed, best_rate(work, "recursive", first))


def _slug(name: str) -> str:
    return name.replace(" ", "-").replace(",", "")


def _entered(root: Path, sets: Sequence[str]) -> Params:
    os.chdir(root)
    return resolve(overrides=sets)


def _cpu_s() -> float:
    """CPU seconds of the stages that were run so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Do what is missing, draw the figure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/recursion"), help="scratch folder")
    parser.add_argument("--results", type=Path, default=figure.RESULTS, help="file of the results")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--problems", type=int, default=200, help="test problems of each size")
    parser.add_argument("--validation", type=int, default=120, help="validation problems")
    parser.add_argument("--draw", action="store_true", help="draw what is known, and do nothing")
    options = parser.parse_args()
    work = RecursionWork(
        folder=options.work.resolve(),
        results=options.results.resolve(),
        steps=options.steps,
        problems=options.problems,
        validation=options.validation,
        commit=commit(),
    )
    work.folder.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        compare(work, options.seeds, options.arms)
    known = figure.read_results(work.results)
    if not known:
        sys.exit(f"{work.results}: no results yet; leave out --draw")
    figure.draw(known, PAPERS).savefig(work.folder / "recursion.png", dpi=120)
    print(figure.tables(known, PAPERS))


if __name__ == "__main__":
    main()
