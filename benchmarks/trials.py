"""Compare what teaches a small model to search clinical trials: `python -m benchmarks.trials`.

Every arm plays the same test prompts at eight papers, in the same environment, greedily and
sampled. `moves` imitates moves drawn at random, and `GRPO` goes on from there. `best plan` is the
best fixed plan of a sweep, written by a script, with the readers of `moves`; `--sweep` finds it on
training prompts that no demonstration showed. `question` is that plan with the question as its
query, over all papers: what the readers alone are worth. `untrained` is a larger model, at the
prompt that explains the tools (`--untrained`: its name on the Hub, or a folder). Results are
appended to benchmarks/trials.jsonl.gz at once and not made again; a killed training goes on.
`--split validation` leaves the test prompts unseen. Its results, those of fewer prompts, and those
under other settings are kept in the work folder: name one for each, with `--folder`.
Opponents without a model are in `examples/trials/opponents.py`.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent.demonstrations.moves import Move, code
from agent.evaluation.statistics import Bootstrap
from agent.policies.base import FrameKey, Policy, TurnReply, TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec, read_specs
from agent.settings import Reads
from env import variables
from env.prompts import block
from flows.runtime import QUIET
from tasks import paths
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.tracking.lineage import commit
from tasks.training.problem_data import unseen

PROFILE, LEVEL = "trials", "hard"
ALONE = 16
"""Episodes that are played alone, for their latency."""
FEWER = 40
"""Prompts of the larger model, which is slow."""
SOURCE = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_suffix(".jsonl.gz")
BEST_PLAN = Move(
    parts=("outcome",),
    words=("significantly", "compared", "p", "groups"),
    quoted=2,
    paper_first=True,
    near=False,
    reads="readers",
    shown=8,
)
"""Found by `examples/trials/opponents.py`; who reads and what is quoted, by `--sweep`."""
PARTS = ("intervention", "comparator", "outcome")
SWEPT = 60
"""Training prompts of the sweep."""
UNTAUGHT = "warmstart.kind=none"
UNTRAINED = [
    "env.prompt_style=full",
    "env.limits.max_turns=6",
    "env.limits.observation_chars=2000",
    "generation.max_turn_tokens=400",
    "generation.max_frame_tokens=6000",
]
"""Settings of a model that never saw the environment."""
MODES = ("greedy", "sampled")
"""Temperature 0, and that of the training."""
BOOTSTRAP = Bootstrap(resamples=10_000, seed=0)

Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A base, and who goes on from it."""

    base: str
    """Name of the base's folder, which arms share."""
    sets: Sequence[str] = ()
    """Settings of the base and of the environment."""
    grpo: Sequence[str] | None = None
    """Settings of GRPO; None without it."""
    plan: Move | None = None
    """What a script writes in place of the root."""
    most: int | None = None
    """Prompts; None for all."""

    @property
    def untaught(self) -> bool:
        """Whether it is the same for every seed."""
        return UNTAUGHT in self.sets


ARMS = {
    "bare": Arm("bare", [UNTAUGHT]),
    "moves": Arm("moves"),
    "best plan": Arm("moves", plan=BEST_PLAN),
    "question": Arm("moves", plan=replace(BEST_PLAN, parts=PARTS, words=(), paper_first=False)),
    "GRPO": Arm("moves", grpo=[]),
    "GRPO, roots only": Arm("moves", grpo=["train.inheritance=none"]),
    "untrained": Arm("untrained", [UNTAUGHT, *UNTRAINED], most=FEWER),
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
    untrained: str | None
    """Source of the larger model."""

    @property
    def results(self) -> Path:
        """File of the results: those of all test prompts are committed."""
        whole = self.split == "test" and not self.most and not self.sets
        return RESULTS if whole else self.folder / f"{self.split}.jsonl.gz"

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
    environment = QUIET | os.environ | {"PYTHONPATH": variables.python_path()}
    words = [word for text in sets for word in ("--set", text)]
    began = time.monotonic()
    for stage in (["resolve", "--profile", PROFILE, *words], *([name] for name in stages)):
        command = [sys.executable, "-m", "flows.pipeline", *stage]
        subprocess.run(command, cwd=folder, env=environment, check=True)
    return time.monotonic() - began


def link(folder: Path, source: Path, names: Sequence[str]) -> None:
    """Make files and folders of another folder appear in this one."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).symlink_to(source / name)


def make_base(folder: Path, sets: Sequence[str]) -> float:
    """Data and a base of these settings in a folder; returns the seconds of the warm start."""
    took = folder / "warmstart-seconds"
    if not took.exists():
        link(folder, SOURCE, ("params.yaml", "profiles", "data/trials"))
        run_stages(folder, sets, ["prepare", "zeroshot"])
        took.write_text(str(run_stages(folder, sets, ["warmstart"])))
    return float(took.read_text())


def train(base: Path, folder: Path, sets: Sequence[str]) -> float:
    """Train from the data and the base of another folder; returns the seconds. May be killed."""
    took = folder / "train-seconds"
    if not took.exists():
        link(folder, base, ("params.yaml", "profiles", "data", "models/base"))
        took.write_text(str(run_stages(folder, sets, ["train"])))
    return float(took.read_text())


def measured(work: TrialsWork, name: str, seed: int) -> None:
    """Make an arm and play the prompts with it, unless its result is known."""
    if work.find(name, seed):
        return
    arm = ARMS[name]
    sets = [*work.sets, *arm.sets, f"warmstart.sft.seed={seed}", f"train.seed={seed}"]
    if (arm.untaught and seed) or (name == "untrained" and not work.untrained):
        return
    if name == "untrained":
        sets.append(f"model.source={work.untrained}")
    root = work.folder / f"seed-{seed}"
    folder = root / arm.base
    row: Row = {"arm": name, "seed": seed, "warmstart_s": make_base(folder, sets)}
    if arm.grpo is not None:
        folder = root / name.replace(", ", "-").replace(" ", "-")
        sets += arm.grpo
        row["train_s"] = train(root / arm.base, folder, sets)
    os.chdir(folder)
    params = resolve(PROFILE, sets)
    torch.set_num_threads(params.threads)
    chosen = evenly(evenly(read(work.split), work.most), arm.most)
    # Samples of two prompts or seeds must not share their random numbers.
    chosen = [replace(one, seed=seed * 1_000_003 + k) for k, one in enumerate(chosen)]
    loaded = load_model(paths.BASE, adapter=None if arm.grpo is None else paths.TRAINED)
    with local_server(params, data=paths.PROBLEMS) as url:
        for mode in MODES:
            row[mode] = played(policy(params, loaded, mode, arm.plan), url, chosen)
        episodes = play(policy(params, loaded, "greedy", arm.plan), url, chosen[:ALONE], sessions=1)
        row["latency_s"] = [round(one.seconds, 3) for one in episodes]
    row["prompts"] = [one.problem_id for one in chosen]
    row["articles"] = [one.collection_id for one in chosen]
    work.add(row)
    print(f"{time.strftime('%H:%M')} {name}, seed {seed}", flush=True)


class Planned:
    """Policy whose code is a script's, and whose readers are a model's.

    Args:
        plan: what the script writes.
        form: of the questions.
        readers: plays the readers.
    """

    def __init__(self, plan: Move, form: str, readers: Policy) -> None:
        self._turn, self._readers = TurnReply(text=block(code(plan, form))), readers

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request."""
        read = iter(self._readers.act([one for one in requests if one.kind == "llm"]))
        return [next(read) if one.kind == "llm" else self._turn for one in requests]

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        self._readers.release(keys)


def sweep(work: TrialsWork) -> None:
    """Print what the best query earns with taught readers, for each way to ask and to quote."""
    sets = [*work.sets, "warmstart.sft.seed=0", "train.seed=0"]
    base = work.folder / "seed-0" / ARMS["moves"].base
    make_base(base, sets)
    os.chdir(base)
    params = resolve(PROFILE, sets)
    torch.set_num_threads(params.threads)
    chosen = evenly(unseen({LEVEL: read("train")}, params)[LEVEL], SWEPT)
    loaded = load_model(paths.BASE)
    asked: list[tuple[Reads, int]] = [("nobody", 0), *(("readers", n) for n in (4, 8, 16))]
    print("| who reads | passages | quoted | F1 |\n|---|---|---|---|")
    with local_server(params, data=paths.PROBLEMS) as url:
        for (reads, shown), quoted in product(asked, (1, 2, 3)):
            plan = replace(BEST_PLAN, reads=reads, shown=shown, quoted=quoted)
            f1 = played(policy(params, loaded, "greedy", plan), url, chosen)["f1"]
            print(f"| {reads} | {shown or quoted} | {quoted} | {np.mean(f1):.3f} |", flush=True)


def read(split: str) -> list[EpisodeSpec]:
    """Prompts of a split at eight papers."""
    return [spec for spec in read_specs(paths.problems_of(split)) if spec.difficulty == LEVEL]


def evenly(every: Sequence[EpisodeSpec], most: int | None) -> list[EpisodeSpec]:
    """Evenly spaced ones of some prompts, or all."""
    many = min(most or len(every), len(every))
    return [every[k * len(every) // many] for k in range(many)]


def policy(params: Params, loaded: tuple[Any, Any], mode: str, plan: Move | None) -> Policy:
    """A model and its tokenizer, and this plan in place of its code."""
    sampled = params.generation
    model = TransformersPolicy(*loaded, sampled if mode == "sampled" else sampled.greedy)
    return Planned(plan, params.warmstart.sft.moves.question, model) if plan else model


def played(policy: Policy, url: str, chosen: Sequence[EpisodeSpec]) -> dict[str, list[float]]:
    """F1, reward and tokens of each prompt. A void episode ends the comparison."""
    episodes = play(policy, url, chosen, sessions=64)
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
        cells = [cell([np.array(r[m][k]) for r in mine], mine[0]["articles"]) for m, k in scores]
        out.append(
            f"| {arm} | {len(mine)} | {' | '.join(cells)} | {tokens:,.0f} | "
            f"{late[0]:.1f}, {late[1]:.1f} | {took:,.0f} |"
        )
    return "\n".join(out)


def differences(rows: Sequence[Row]) -> str:
    """GRPO minus each other arm of the same seed, paired by prompt."""
    out = ["| | F1 greedy | F1 sampled |", "|---|---|---|"]
    mine = [row for row in rows if row["arm"] == "GRPO"]
    for other in dict.fromkeys(row["arm"] for row in rows if row["arm"] != "GRPO"):
        others = {row["seed"]: row for row in rows if row["arm"] == other}
        seeds = [0] * len(mine) if ARMS[other].untaught else [row["seed"] for row in mine]
        pairs = [(row, others[one]) for row, one in zip(mine, seeds, strict=True) if one in others]
        if pairs:
            shared = [pairs[0][0]["prompts"].index(one) for one in pairs[0][1]["prompts"]]
            articles = [pairs[0][0]["articles"][place] for place in shared]
            cells = [
                cell(
                    [np.array(a[mode]["f1"])[shared] - np.array(b[mode]["f1"]) for a, b in pairs],
                    articles,
                )
                for mode in MODES
            ]
            out.append(f"| GRPO minus {other} | {' | '.join(cells)} |")
    return "\n".join(out)


def cell(values: Sequence[np.ndarray], articles: Sequence[str]) -> str:
    """Mean over prompts and seeds with its interval, and for several seeds that of each."""

    def interval(one: np.ndarray) -> str:
        estimate = BOOTSTRAP.mean(one.tolist(), articles)
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
    parser.add_argument("--untrained", help="name on the Hub or folder of the larger model")
    parser.add_argument("--sweep", action="store_true", help="find the best plan, do nothing else")
    parser.add_argument("--set", nargs="*", default=[], help="settings of every arm")
    parser.add_argument("--folder", type=Path, default=Path("runs/trials"))
    parser.add_argument("--draw", action="store_true", help="print what is known, do nothing")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    work = TrialsWork(folder, options.split, options.prompts, options.set, options.untrained)
    if options.sweep:
        sweep(work)
        return
    for seed in () if options.draw else options.seeds:
        for name in options.arms:
            measured(work, name, seed)
    if not (rows := read_results(work.results)):
        sys.exit(f"{work.results}: no results yet; leave out --draw")
    print(f"{table(rows)}\n\n{differences(rows)}")


if __name__ == "__main__":
    main()
