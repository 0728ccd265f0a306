"""Compare a training run that was killed repeatedly with an undisturbed one.

    python -m benchmarks.faults.training_kills [--base models/base] [--kills 20] [--seed 0]
                               [--keep DIR] [--set train.steps=40 ...]

The same small run is trained twice: once undisturbed, and once with SIGKILLs at random moments and
a restart after each. A third of the kills hit a process before its first step. Then every row of
reports/train.parquet and the final weights are compared, without clocks. The exit code is 1 if
a difference exceeds the tolerance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from safetensors.numpy import load_file

from agent.training.checkpoints import steps
from benchmarks.faults.project import ROOT, kill_group, launch
from env import auth
from env.problems.schema import to_row
from env.problems.store import ProblemStore
from tasks import train, train_problems
from tasks.config import RESOLVED, resolve
from tasks.train import RESULT

SMALL = [
    "threads=1",
    "env.deterministic=true",
    "prepare.synthetic.collections={train: 24, validation: 2, test: 2}",
    "train.steps=40",
    "train.processes=1",
    "train.problems_per_step=2",
    "train.group_size=4",
    "train.save_every=1",
    "train.table_every=12",
    "train.evaluate_every=3",
    "train.evaluate_problems=1",
    "train.warmup_steps=2",
    "train.logprob_check.every=5",
]
STARTING = 0.33
"""Share of the kills that hit a process before its first step."""
CLOCKS = ("_seconds", "tokens_per_second")
TOLERANCE = 1e-5
LONGEST_S = 900.0
"""Time limit of one process in seconds; a longer run hangs."""


def main() -> int:
    """Do both runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments, not of the run")
    parser.add_argument("--keep", type=Path, help="folder that keeps both runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if not (options.base / "config.json").is_file():
        parser.error(
            f"{options.base} holds no model. Run the stage warmstart, or name one with --base."
        )
    with ExitStack() as stack:
        folder = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rlm-kills-"))
        )
        whole, killed = (
            _project(folder / name, options.base, [*SMALL, *options.set])
            for name in ("whole", "killed")
        )
        print(f"undisturbed run in {whole}", flush=True)
        first_s, total_s = undisturbed(whole)
        print(f"first checkpoint after {first_s:.1f} s, end after {total_s:.1f} s", flush=True)
        rng = np.random.default_rng(options.seed)
        kill_again_and_again(killed, options.kills, first_s, total_s, rng)
        return compare(whole, killed)


def undisturbed(folder: Path) -> tuple[float, float]:
    """Train to the end; return the seconds to the first checkpoint and in total."""
    started = time.monotonic()
    with _training(folder) as process:
        _await_checkpoint(process, folder, "")
        first_s = time.monotonic() - started
        _await_end(process, folder)
    return first_s, time.monotonic() - started


def kill_again_and_again(
    folder: Path, kills: int, first_s: float, total_s: float, rng: np.random.Generator
) -> None:
    """Start and kill the run repeatedly, then let it end.

    Some kills hit a process before its first step, the others some time after its first
    checkpoint. So the run advances even on a busy machine. The last start is not killed.
    """
    share_s = (total_s - first_s) / max(kills, 1)
    for number in range(1, kills + 1):
        starting = rng.random() < STARTING
        after_s = rng.uniform(0, first_s if starting else share_s)
        started = time.monotonic()
        with _training(folder) as process:
            if not starting:
                _await_checkpoint(process, folder, _checkpoint(folder))
            try:
                process.wait(timeout=after_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.returncode != -signal.SIGKILL:
            print(f"the run ended before kill {number} (code {process.returncode})")
            break
        lived = f"after {time.monotonic() - started:5.1f} s"
        reached = _checkpoint(folder) or "none"
        print(f"kill {number:2d} {lived}, newest checkpoint: {reached}", flush=True)
    if not any((folder / result).exists() for result in RESULT.values()):
        with _training(folder) as process:
            _await_end(process, folder)


def compare(whole: Path, killed: Path) -> int:
    """Print the differences of the two runs; return 1 if one exceeds the tolerance."""
    one, other = (pd.read_parquet(f / "reports/train.parquet") for f in (whole, killed))
    differences: dict[str, float] = {}
    if list(one.columns) != list(other.columns) or len(one) != len(other):
        print(f"the reports differ in shape: {one.shape} and {other.shape}")
        return 1
    for name in one.columns:
        if name.endswith(CLOCKS):
            continue
        a, b = one[name], other[name]
        if pd.api.types.is_numeric_dtype(a):
            same = (a == b) | (a.isna() & b.isna())
            differences[name] = float((a - b).abs().where(~same, 0.0).fillna(np.inf).max())
        else:
            differences[name] = 0.0 if (a == b).all() else np.inf
    differences["final weights"] = _weights_apart(whole, killed)
    print(f"\n{len(one)} rows, {len(differences)} columns without a clock\n")
    print("| figure | largest difference |\n|---|---|")
    for name, difference in differences.items():
        print(f"| {name} | {difference:.3g} |")
    worst = max(differences.values())
    print(f"\nlargest of all: {worst:.3g}, tolerance {TOLERANCE:g}")
    return int(not worst <= TOLERANCE)


def _weights_apart(whole: Path, killed: Path) -> float:
    one, other = (load_file(_result(folder)) for folder in (whole, killed))
    if one.keys() != other.keys():
        return float("inf")
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def _result(folder: Path) -> Path:
    (path,) = (
        path for result in RESULT.values() for path in (folder / result).glob("*.safetensors")
    )
    return path


def _project(folder: Path, base: Path, overrides: list[str]) -> Path:
    """Make a folder with settings, problems and the base, ready for the stage `train`."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    (folder / train.BASE).symlink_to(base.resolve())
    with chdir(ROOT):
        params = resolve(overrides=overrides)
    (folder / RESOLVED).write_text(yaml.safe_dump(params.model_dump(by_alias=True, mode="json")))
    store = ProblemStore.generate(params.prepare.synthetic)
    (folder / train_problems.DATA).parent.mkdir(parents=True)
    for path in (train_problems.DATA, train_problems.HELD_OUT):
        rows = [to_row(store.get(name)) for name in store.ids(path.stem)]
        pd.DataFrame(rows).to_parquet(folder / path, index=False)
    return folder


@contextmanager
def _training(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the stage in its own process, with its output in train.log."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder.resolve()}/mlflow.db",
    }
    environment.pop(auth.URL, None)
    command = [sys.executable, "-m", "flows.pipeline", "train"]
    process = launch(command, folder, environment, folder / "train.log", "ab")
    try:
        yield process
    finally:
        kill_group(process)


def _checkpoint(folder: Path) -> str:
    """Name of the newest checkpoint; empty if none exists."""
    found = [path.name for path in steps(folder / "models/checkpoints").values()]
    return found[-1] if found else ""


def _await_checkpoint(process: subprocess.Popen[bytes], folder: Path, before: str) -> None:
    """Wait until a newer checkpoint than `before` exists, or the process ends."""
    deadline = time.monotonic() + LONGEST_S
    while process.poll() is None and _checkpoint(folder) == before:
        if time.monotonic() > deadline:
            raise SystemExit(f"a run took longer than {LONGEST_S:g} s")
        time.sleep(0.02)


def _await_end(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code = process.wait(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"a run took longer than {LONGEST_S:g} s") from None
    if code:
        raise SystemExit(f"the run failed: see {folder / 'train.log'}")


if __name__ == "__main__":
    sys.exit(main())
