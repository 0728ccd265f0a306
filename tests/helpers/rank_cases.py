"""Main module of ranks that train the tiny model on little trees, case by case."""

import hashlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from agent.training import ranks

JOB = "cases.json"
STARTED = "started"
"""File of the ids of the ranks' processes, one a line."""
WAITING = "waiting"
"""File that a rank makes before it waits."""


def train(folder: Path, name: str, case: dict[str, Any]) -> None:
    """Train a case to its end; each rank saves its weights, rank 0 its figures."""
    import torch

    from helpers.tiny_trees import SETTINGS, make_trainer, play_trees

    def rollout(model: Any, step: int) -> Any:
        if step == case.get("fails_at") and ranks.index() == 1:
            if case["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif case["how"] == "wait":
                (folder / WAITING).touch()
                time.sleep(600)
            raise ValueError("no more")
        return play_trees(model, step)

    settings = SETTINGS.model_validate(SETTINGS.model_dump() | case.get("settings", {}))
    log: list[tuple[int, dict[str, float]]] = []
    trainer = make_trainer(folder / name, settings, rollout=rollout, log=log)
    if "nan_at" in case:
        train_with_nan(trainer, case["nan_at"], folder / f"{name}.{ranks.index()}.json")
        return
    trainer.resume(Path(case["start"]) if "start" in case else None)
    weights = {n: p.detach() for n, p in trainer.live_model.named_parameters() if p.requires_grad}
    torch.save(weights, folder / f"{name}.{ranks.index()}.pt")
    if ranks.index() == 0:
        (folder / f"{name}.json").write_text(json.dumps(log))


def train_with_nan(trainer: Any, step: int, out: Path) -> None:
    """Train with NaN in rank 1's own gradients of a step; each rank writes a row for each step.

    A row has the kept share of the step, the number of weights with moments, and a hash of all.
    """
    rows: list[tuple[float, int, str]] = []
    weights = {n: p for n, p in trainer.live_model.named_parameters() if p.requires_grad}

    def spoil(gradient: Any) -> Any:
        return gradient * float("nan") if len(rows) == step - 1 and ranks.index() == 1 else gradient

    def note(_: int, logs: dict[str, float]) -> None:
        digest = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in weights.values()))
        rows.append((logs["train/step_scale"], len(trainer.optimizer.state), digest.hexdigest()))

    for weight in weights.values():
        weight.register_hook(spoil)  # before the ranks' gradients are averaged
    trainer._on_step = note
    trainer.resume(None)
    out.write_text(json.dumps(rows))


def main() -> None:
    """Train all cases, or compare what the ranks have."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    cases = json.loads((folder / JOB).read_text())
    with (folder / STARTED).open("a") as file:
        file.write(f"{os.getpid()}\n")

    def work() -> None:
        marks = {"code": "a", "training data": f"b{ranks.index()}" if "differ" in cases else "b0"}
        ranks.require_equal(marks, {"code": "a", "training data": "b0"})
        for name, case in cases.items():
            train(folder, name, case)

    ranks.run_rank(work, folder, (RuntimeError,))


if __name__ == "__main__":
    main()
