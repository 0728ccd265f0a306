"""Compare what teaches a small model to search clinical trials: `python -m benchmarks.trials`.

Every arm plays the same test prompts at eight papers, in the same environment, greedily and
sampled. `moves` imitates moves drawn at random, `GRPO` goes on from there. `best plan` imitates one
plan alone, the best of a sweep. The arms without children can't call themselves at all. Results are
appended to benchmarks/trials.jsonl.gz at once and not made again; a killed training goes on.
`--split validation` leaves the test prompts unseen, and its results are kept in the work folder.
Opponents without a model are in `examples/trials/opponents.py`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent.evaluation.statistics import Bootstrap
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec, read_specs
from env import variables
from tasks import paths
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.tracking.lineage import commit

PROFILE, LEVEL = "trials", "hard"
ALONE = 16
"""Episodes that are played alone, for their latency."""
SOURCE = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_suffix(".jsonl.gz")
BEST_PLAN = [
    "warmstart.sft.moves.parts=[[outcome]]",
    "warmstart.sft.moves.words=[significantly, compared, p, groups]",
    "warmstart.sft.moves.word_counts=[4]",
    "warmstart.sft.moves.quoted=[1]",
    "warmstart.sft.moves.paper_first=1",
    "warmstart.sft.moves.near=0",
    "warmstart.sft.moves.reads={nobody: 1}",
]
"""The best fixed plan: `python -m examples.trials.opponents` finds it on training prompts."""
NO_CHILDREN = ["warmstart.sft.moves.reads={nobody: 1}", "env.limits.max_depth=0"]
MODES = {"greedy": 0.0, "sampled": 1.0}
"""Temperatures."""
BOOTSTRAP = Bootstrap(resamples=10_000, seed=0)

Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A base, and whether GRPO goes on from it."""

    base: str
    """Name of the base's folder, which arms share."""
    sets: Sequence[str] = ()
    """Settings of the base and of the environment."""
    grpo: bool = False


ARMS = {
    "bare": Arm("bare", ["warmstart.kind=none"]),
    "moves": Arm("moves"),
    "GRPO": Arm("moves", grpo=True),
    "best plan": Arm("best-plan", BEST_PLAN),
    "moves, no children": Arm("no-children", NO_CHILDREN),
    "GRPO, no children": Arm("no-children", NO_CHILDREN, grpo=True),
}


@dataclass(frozen=True)
class TrialsWork:
    """Folder and sizes of the comparison."""

    folder: Path
    split: str
    most: int | None
    """Prompts; None for all."""
    sets: Sequence[str]
    """Settings of every arm."""

    @property
    def results(self) -> Path:
        """File of the results: test prompts are committed."""
        return RESULTS if self.split == "test" else self.folder / f"{self.split}.jsonl.gz"

    def find(self, arm: str, seed: int) -> Row | None:
        """The result of an arm, if it is known."""
        rows = read_results(self.results)
        return next((row for row in rows if (row["arm"], row["seed"]) == (arm, seed)), None)

    def add(self, row: Row) -> None:
        """Append a result with its commit and date."""
        row |= {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "sets": list(self.sets)}
        with gzip.open(self.results, "at") as stream:
            stream.write(json.dumps(row) + "\n")


def read_results(path: Path) -> list[Row]:
    """Results in a file, one JSON object a line; empty if it doesn't exist."""
    if not path.exists():
        return []
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]


def run_stages(folder: Path, sets: Sequence[str], stages: Sequence[str]) -> float:
    """Run stages of this source in a folder, under these settings; returns their seconds.

    Raises:
        CalledProcessError: a stage failed and has said why.
    """
    environment = os.environ | {"PYTHONPATH": variables.python_path()}
    words = [word for text in sets for word in ("--set", text)]
    began = time.monotonic()
    for stage in (["resolve", "--profile", PROFILE, *words], *([name] for name in stages)):
        command = [sys.executable, "-m", "flows.pipeline", *stage]
        subprocess.run(command, cwd=folder, env=environment, check=True)
    return time.monotonic() - began


def make_base(work: TrialsWork, folder: Path, sets: Sequence[str]) -> float:
    """Data and a base of these settings in a folder; returns the seconds of the warm start."""
    took = folder / "warmstart-seconds"
    if not took.exists():
        for linked in ("params.yaml", "profiles", "data/trials"):
            (folder / linked).parent.mkdir(parents=True, exist_ok=True)
            if not (folder / linked).exists():
                (folder / linked).symlink_to(SOURCE / linked)
        run_stages(folder, sets, ["prepare"])
        took.write_text(str(run_stages(folder, sets, ["warmstart"])))
    return float(took.read_text())


def train(base: Path, folder: Path, sets: Sequence[str]) -> float:
    """Train from the data and the base of another folder; returns the seconds. May be killed."""
    took = folder / "train-seconds"
    if not took.exists():
        for linked in ("params.yaml", "profiles", "data", "models/base"):
            (folder / linked).parent.mkdir(parents=True, exist_ok=True)
            if not (folder / linked).exists():
                (folder / linked).symlink_to(base / linked)
        took.write_text(str(run_stages(folder, sets, ["train"])))
    return float(took.read_text())


def measured(work: TrialsWork, name: str, seed: int) -> None:
    """Make an arm and play the prompts with it, unless its result is known."""
    if work.find(name, seed):
        return
    arm = ARMS[name]
    sets = [*work.sets, *arm.sets, f"warmstart.sft.seed={seed}", f"train.seed={seed}"]
    root = work.folder / f"seed-{seed}"
    folder = root / arm.base
    row: Row = {"arm": name, "seed": seed, "warmstart_s": make_base(work, folder, sets)}
    if arm.grpo:
        folder = root / f"{arm.base}-grpo"
        row["train_s"] = train(root / arm.base, folder, sets)
    os.chdir(folder)
    params = resolve(PROFILE, sets)
    torch.set_num_threads(params.threads)
    chosen = specs(work)
    with local_server(params, data=paths.PROBLEMS) as url:
        adapter = paths.TRAINED["lora"] if arm.grpo else None
        for mode, temperature in MODES.items():
            row[mode] = played(params, temperature, adapter, url, chosen)
        row["latency_s"] = latencies(params, adapter, url, chosen)
    row["articles"] = [one.collection_id for one in chosen]
    work.add(row)
    print(f"{time.strftime('%H:%M')} {name}, seed {seed}", flush=True)


def specs(work: TrialsWork) -> list[EpisodeSpec]:
    """Prompts at eight papers, all or evenly spaced ones."""
    at = paths.PROBLEMS / f"{work.split}.parquet"
    every = [spec for spec in read_specs(at) if spec.difficulty == LEVEL]
    many = min(work.most or len(every), len(every))
    return [every[k * len(every) // many] for k in range(many)]


def policy(params: Params, temperature: float, adapter: Path | None) -> TransformersPolicy:
    """The base of the working directory, with this adapter or else its own."""
    settings = params.evaluate.generation.model_copy(update={"temperature": temperature})
    return TransformersPolicy(*load_model(paths.BASE, adapter=adapter), settings)


def played(
    params: Params,
    temperature: float,
    adapter: Path | None,
    url: str,
    chosen: Sequence[EpisodeSpec],
) -> dict[str, list[float]]:
    """F1, reward and tokens of each prompt. A void episode ends the comparison."""
    episodes = play(policy(params, temperature, adapter), url, chosen, sessions=64)
    if reason := next((one.void for one in episodes if one.void), None):
        raise SystemExit(f"trials: an episode is void ({reason}). Run the command again.")
    turns = [[t for frame in one.frames.values() for t in frame.turns] for one in episodes]
    return {
        "f1": [round(one.metrics.f1, 4) for one in episodes if one.metrics],
        "reward": [round(one.reward or 0.0, 4) for one in episodes],
        "tokens": [
            float(sum(len(t.prompt_ids) + len(t.sampled_ids) for t in some)) for some in turns
        ],
    }


def latencies(
    params: Params, adapter: Path | None, url: str, chosen: Sequence[EpisodeSpec]
) -> list[float]:
    """Seconds of greedy episodes that are played one after the other."""
    episodes = play(policy(params, 0.0, adapter), url, chosen[:ALONE], sessions=1)
    return [round(one.seconds, 3) for one in episodes]


def table(rows: Sequence[Row]) -> str:
    """A line for each arm: means over seeds with intervals by article, and each seed's mean."""
    out = [
        "| arm | seeds | F1 greedy | F1 sampled | reward sampled | tokens | p50, p95 s | s taught |"
    ]
    out.append("|---" * 8 + "|")
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        tokens = np.mean([row["greedy"]["tokens"] for row in mine])
        late = np.percentile([s for row in mine for s in row["latency_s"]], [50, 95])
        took = np.mean([row["warmstart_s"] + row.get("train_s", 0.0) for row in mine])
        scores = (("greedy", "f1"), ("sampled", "f1"), ("sampled", "reward"))
        cells = [cell([np.array(r[m][k]) for r in mine], mine[0]) for m, k in scores]
        out.append(
            f"| {arm} | {len(mine)} | {' | '.join(cells)} | {tokens:,.0f} | "
            f"{late[0]:.1f}, {late[1]:.1f} | {took:,.0f} |"
        )
    return "\n".join(out)


def differences(rows: Sequence[Row], arm: str = "GRPO") -> str:
    """This arm minus each other one of the same seed, paired by prompt."""
    out = ["| | F1 greedy | F1 sampled |", "|---|---|---|"]
    known = {(row["arm"], row["seed"]): row for row in rows}
    for other in dict.fromkeys(row["arm"] for row in rows if row["arm"] != arm):
        pairs = [
            (known[arm, seed], known[other, seed])
            for name, seed in known
            if name == arm and (other, seed) in known
        ]
        if pairs:
            cells = [
                cell([np.subtract(a[mode]["f1"], b[mode]["f1"]) for a, b in pairs], pairs[0][0])
                for mode in MODES
            ]
            out.append(f"| {arm} minus {other} | {' | '.join(cells)} |")
    return "\n".join(out)


def cell(values: Sequence[np.ndarray], row: Mapping[str, Any]) -> str:
    """Mean over prompts and seeds with its interval, and for several seeds that of each."""

    def interval(one: np.ndarray) -> str:
        estimate = BOOTSTRAP.mean(one.tolist(), row["articles"])
        return f"{estimate.mean:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"

    every = interval(np.mean(values, axis=0))
    return f"{every}; {'; '.join(map(interval, values))}" if len(values) > 1 else every


def main() -> None:
    """Do what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--split", default="test", choices=("validation", "test"))
    parser.add_argument("--prompts", type=int, help="evenly spaced ones; default: all")
    parser.add_argument("--set", nargs="*", default=[], help="settings of every arm")
    parser.add_argument("--folder", type=Path, default=Path("runs/trials"))
    parser.add_argument("--draw", action="store_true", help="print what is known, do nothing")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = TrialsWork(folder, options.split, options.prompts, options.set)
    for seed in () if options.draw else options.seeds:
        for name in options.arms:
            measured(work, name, seed)
    if not (rows := read_results(work.results)):
        sys.exit(f"{work.results}: no results yet; leave out --draw")
    print(f"{table(rows)}\n\n{differences(rows)}")


if __name__ == "__main__":
    main()
