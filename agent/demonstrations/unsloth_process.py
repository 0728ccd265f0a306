"""Supervised training of an adapter with Unsloth, in a process of its own.

    python -m agent.demonstrations.unsloth_process JOB

Unsloth replaces parts of transformers and TRL for its whole process, and writes files into the
working folder. So the stage starts one for it, which leaves an adapter and nothing else. The
process prints each step's figures as a line.

This module imports our trainer before Unsloth, so that it subclasses TRL's own class, and its
gradients stay the same. Of Unsloth, only the kernels and the loader are used, not its trainers, its
merge or its engine. Its models cut sequences that are longer than `max_seq_length`, without a
message. Source: Unsloth 2026.10.9.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import load_peft_weights, set_peft_model_state_dict
from pydantic import TypeAdapter
from transformers import AutoConfig, AutoTokenizer

from agent.demonstrations.sft_rows import DemonstrationRow
from agent.demonstrations.supervised import OnSupervisedStep, train_adapter
from agent.errors import PolicyError
from agent.models import model_files
from agent.settings import LoraSettings, SftSettings, TrainSettings
from agent.training.checkpoints import Resume
from env import variables

_STEP = "sft step: "
_TAIL = 5
"""Last lines of a failed process that its error has."""


def require_unsloth() -> None:
    """Check for Unsloth and a GPU, without importing Unsloth.

    Raises:
        PolicyError: Unsloth is not installed, or torch finds no GPU.
    """
    other = "or set model.backend=transformers."
    if importlib.util.find_spec("unsloth") is None:
        raise PolicyError(f"Unsloth is not installed. Run make setup-cuda, {other}")
    if model_files.this_device() == "cpu":
        raise PolicyError(
            "model.backend is 'unsloth', which needs a GPU, but torch finds none. Run python -m "
            f"flows.doctor, {other}"
        )


def load_with_unsloth(
    folder: Path, lora: LoraSettings, *, max_seq_length: int, seed: int
) -> tuple[Any, Any]:
    """Load a base model with an adapter, its own or a new one, for training on a GPU.

    Args:
        folder: base model, in 16 bit or NF4.
        lora: the adapter; one of the base's own must have the same rank and layers.
        max_seq_length: most tokens of a conversation.
        seed: of the new adapter's weights.

    Raises:
        PolicyError: the base has another adapter.
    """
    model_files.require_lora(folder, lora)
    # Else it fetches files from the Hub to be counted, which can take two minutes for each.
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
    from unsloth import FastLanguageModel

    device = model_files.this_device()
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=str(folder),
        max_seq_length=max_seq_length,
        dtype=model_files.saved_dtype(config, device),
        load_in_4bit=getattr(config, "quantization_config", None) is not None,
        device_map={"": device},
        use_gradient_checkpointing="unsloth",
        fast_inference=False,
        random_state=seed,
        trust_remote_code=False,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=lora.r,
        target_modules=lora.targets,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=seed,
        max_seq_length=max_seq_length,
    )
    if (own := folder / model_files.ADAPTER).is_dir():
        set_peft_model_state_dict(model, load_peft_weights(str(own), device=device))
    return model, tokenizer


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
    start: Resume,
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
        start: as in `AdapterTrainer`.

    Raises:
        PolicyError: the process failed; the message has its last lines.
    """
    with TemporaryDirectory(prefix="rlm-unsloth-") as folder:
        job, errors = Path(folder, "job.json"), Path(folder, "errors.txt")
        folders = {"base": str(base.resolve()), "out": str(out.resolve())}
        saved = {
            "folder": str(start.folder.resolve()),
            "checkpoint": start.checkpoint and str(start.checkpoint.resolve()),
            "fingerprint": dict(start.fingerprint),
        }
        sizes = {"frame_tokens": frame_tokens, "threads": threads}
        sections = {"settings": settings.model_dump(), "train": train.model_dump()}
        data = {**folders, **sizes, **sections, "rows": rows, "start": saved}
        job.write_text(json.dumps(data), encoding="utf-8")
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

    torch.set_num_threads(job["threads"])
    settings = SftSettings.model_validate(job["settings"])
    train = TrainSettings.model_validate(job["train"])
    model, _ = load_with_unsloth(
        Path(job["base"]), train.lora, max_seq_length=job["frame_tokens"], seed=settings.seed
    )
    # Unsloth changes some tokenizers; this is the one of the rows.
    tokenizer = AutoTokenizer.from_pretrained(job["base"], trust_remote_code=False)
    train_adapter(
        *(model, tokenizer, job["rows"], settings, train),
        out=Path(job["out"]),
        on_step=lambda step, figures: print(_STEP + json.dumps([step, figures]), flush=True),  # noqa: T201
        start=TypeAdapter(Resume).validate_python(job["start"]),
    )


if __name__ == "__main__":
    main()
