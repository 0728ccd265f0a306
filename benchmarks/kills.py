"""Is a training run that was killed again and again the same run? Twice the same small one.

    python -m benchmarks.kills [--base models/base] [--kills 20] [--seed 0] [--keep DIR]
                               [--set train.steps=40 ...]

Once undisturbed; once with SIGKILLs at random moments (a third of them before the process has
made a step), started again after each. Then every row of reports/train.parquet and the final
weights are compared; clocks are left out. Ends with 1 if anything differs by more than the
tolerance.
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
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from agent.checkpoints import steps
from tasks.train import RESULT

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    "threads=1",
    "env.deterministic=true",
    "prepare.synthetic.groups={train: 24, validation: 2, test: 2}",
    "train.steps=40",
    "train.problems_per_step=2",
    "train.group_size=4",
    "train.save_every=1",
    "train.table_every=12",
    "train.warmup_steps=2",
    "train.parity.every=5",
]
STARTING = 0.33
"""Share of the kills that fall before the process has trained a step."""
CLOCKS = ("_seconds", "tokens_per_second")
TOLERANCE = 1e-5
LONGEST_S = 900.0
"""Of one process; a run that takes longer hangs."""


def main() -> int:
    """Run both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments, not of the run")
    parser.add_argument("--keep", type=Path, help="folder that keeps both runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    if not (options.base / "config.json").is_file():
        parser.error(f"{options.base} holds no model: run the stage warmstart, or name one")
    with _folder(options.keep) as folder:
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
    """Train to the end; seconds to the first checkpoint, and in all."""
    started = time.monotonic()
    first_s = LONGEST_S
    with _training(folder) as process:
        while process.poll() is None:
            if first_s == LONGEST_S and _checkpoint(folder):
                first_s = time.monotonic() - started
            _no_longer_than(LONGEST_S, started, process)
            time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"the undisturbed run failed: see {folder / 'train.log'}")
    return first_s, time.monotonic() - started


def kill_again_and_again(
    folder: Path, kills: int, first_s: float, total_s: float, rng: np.random.Generator
) -> None:
    """Start, kill and start again, then let it end.

    Some kills fall before the first step of their process, the others some time after its first
    checkpoint, by which the run advances however busy the machine is. The last start is not
    killed, so it ends in any case.
    """
    share_s = (total_s - first_s) / max(kills, 1)
    for number in range(1, kills + 1):
        starting = rng.random() < STARTING
        after_s = rng.uniform(0, first_s if starting else share_s)
        before = _checkpoint(folder)
        started = time.monotonic()
        with _training(folder) as process:
            while not starting and process.poll() is None and _checkpoint(folder) == before:
                _no_longer_than(LONGEST_S, started, process)
                time.sleep(0.02)
            try:
                process.wait(timeout=after_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
        if process.returncode != -signal.SIGKILL:
            print(f"the run ended before kill {number} (code {process.returncode})")
            break
        lived = f"after {time.monotonic() - started:5.1f} s"
        reached = _checkpoint(folder) or "none"
        print(f"kill {number:2d} {lived}, newest checkpoint: {reached}", flush=True)
    if any((folder / result).exists() for result in RESULT.values()):
        return
    started = time.monotonic()
    with _training(folder) as process:
        while process.poll() is None:
            _no_longer_than(LONGEST_S, started, process)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the run failed after the last kill: see {folder / 'train.log'}")


def compare(whole: Path, killed: Path) -> int:
    """Print how far the two runs are apart; 1 if further than the tolerance."""
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
    from safetensors.numpy import load_file

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
    """A folder with settings, problems and the base, ready for the stage `train`."""
    import yaml

    from env.problems.schema import to_row
    from env.problems.store import ProblemStore
    from tasks import train
    from tasks.config import RESOLVED, resolve

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    (folder / train.BASE).symlink_to(base.resolve())
    here = Path.cwd()
    os.chdir(ROOT)
    params = resolve(overrides=overrides)
    os.chdir(here)
    (folder / RESOLVED).write_text(yaml.safe_dump(params.model_dump(by_alias=True, mode="json")))
    store = ProblemStore.generate(params.prepare.synthetic)
    rows = [
        to_row(store.get(problem_id))
        for level in params.prepare.synthetic.levels
        for problem_id in store.ids("train", level)
    ]
    (folder / train.DATA).parent.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(folder / train.DATA, index=False)
    return folder


@contextmanager
def _training(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The stage in a process of its own; its words go to train.log."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder.resolve()}/mlflow.db",
    }
    environment.pop("RLM_ENV_URL", None)
    with (folder / "train.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.pipeline", "train"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _checkpoint(folder: Path) -> str:
    """Name of the newest checkpoint; empty without one."""
    found = [path.name for path in steps(folder / "models/checkpoints").values()]
    return found[-1] if found else ""


def _no_longer_than(limit_s: float, started: float, process: subprocess.Popen[bytes]) -> None:
    if time.monotonic() - started > limit_s:
        process.kill()
        raise SystemExit(f"a run took longer than {limit_s:g} s")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="rlm-kills-") as name:
        yield Path(name)


if __name__ == "__main__":
    sys.exit(main())
