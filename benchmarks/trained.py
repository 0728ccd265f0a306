"""What the benchmarks that compare trainings share: stages in folders, and held-out scores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.evaluate import choose
from tasks.train import BASE, RESULT

SOURCE = Path(__file__).resolve().parent.parent
COPIED = ("params.yaml", "profiles", "data", "models/base")


def train(folder: Path, root: Path, sets: Sequence[str], profile: str = "nano") -> Params:
    """Train in `folder`, from the data and the base of `root`; it becomes the working directory.

    Args:
        folder: replaced if it exists.
        root: holds params.yaml, profiles/, data/ and models/base.
        sets: `section.key=value`.
        profile: the settings that `sets` changes.

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
    run_stages(folder, sets, ["train"], profile)
    os.chdir(folder)
    return resolve(profile, sets)


def run_stages(
    folder: Path, sets: Sequence[str], stages: Sequence[str], profile: str = "nano"
) -> None:
    """Run stages of this source in a folder, under these settings.

    Raises:
        CalledProcessError: a stage failed; its output was printed.
    """
    command = [sys.executable, "-m", "flows.pipeline"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    words = [word for text in sets for word in ("--set", text)]
    for stage in (["resolve", "--profile", profile, *words], *([name] for name in stages)):
        done = subprocess.run(
            [*command, *stage], cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            done.check_returncode()


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
