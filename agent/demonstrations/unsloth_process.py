"""Supervised training of an adapter with Unsloth, in a process of its own.

    python -m agent.demonstrations.unsloth_process JOB

Unsloth replaces parts of transformers and TRL for its whole process, and writes files into the
working folder. So the stage starts one for it, which leaves an adapter and nothing else. The
process imports `supervised.py` before Unsloth, and prints each step's figures as a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agent.errors import PolicyError
from agent.models.unsloth_loader import load_with_unsloth
from agent.settings import SftSettings, TrainSettings
from env import variables

if TYPE_CHECKING:
    from agent.demonstrations.rows import DemonstrationRow
    from agent.demonstrations.supervised import OnSupervisedStep

_STEP = "sft step: "
_TAIL = 5
"""Last lines of a failed process that its error has."""


def train_with_unsloth(
    base: Path,
    rows: Sequence[DemonstrationRow],
    settings: SftSettings,
    train: TrainSettings,
    *,
    out: Path,
    frame_tokens: int,
    threads: int,
    on_step: OnSupervisedStep,
) -> None:
    """Train a new adapter of a base model and save it in a folder.

    Args:
        base: folder of the model and its tokenizer.
        rows: conversations with labels.
        settings: the section `warmstart.sft`.
        train: the section `train`; Unsloth has its own checkpointing.
        out: folder of the adapter.
        frame_tokens: tokens of one frame's conversation.
        threads: CPU threads of torch.
        on_step: receives each step's figures.

    Raises:
        PolicyError: the process failed; the message has its last lines.
    """
    with TemporaryDirectory(prefix="rlm-unsloth-") as folder:
        job, errors = Path(folder, "job.json"), Path(folder, "errors.txt")
        folders = {"base": str(base.resolve()), "out": str(out.resolve())}
        sizes = {"frame_tokens": frame_tokens, "threads": threads}
        sections = {"settings": settings.model_dump(), "train": train.model_dump()}
        job.write_text(json.dumps({**folders, **sizes, **sections, "rows": rows}), encoding="utf-8")
        with (
            errors.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(job)],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": variables.python_path()},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith(_STEP):
                        step, figures = json.loads(line.removeprefix(_STEP))
                        on_step(step, figures)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            tail = "\n".join(errors.read_text(encoding="utf-8").strip().splitlines()[-_TAIL:])
            raise PolicyError(
                f"Unsloth did not train the adapter (exit code {process.returncode}):\n{tail}"
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Do the job of a file."""
    (name,) = sys.argv[1:] if argv is None else argv
    job = json.loads(Path(name).read_text(encoding="utf-8"))

    import torch
    from transformers import AutoTokenizer

    from agent.demonstrations.supervised import train_adapter  # before Unsloth

    torch.set_num_threads(job["threads"])
    settings = SftSettings.model_validate(job["settings"])
    train = TrainSettings.model_validate(job["train"])
    model, _ = load_with_unsloth(
        Path(job["base"]),
        train.lora,
        max_seq_length=job["frame_tokens"],
        seed=settings.seed,
    )
    # Unsloth changes some tokenizers; this is the one of the rows.
    tokenizer = AutoTokenizer.from_pretrained(job["base"], trust_remote_code=False)
    train_adapter(
        *(model, tokenizer, job["rows"], settings, train),
        out=Path(job["out"]),
        on_step=lambda step, figures: print(_STEP + json.dumps([step, figures]), flush=True),  # noqa: T201
    )


if __name__ == "__main__":
    main()
