"""Loss and batches of the supervised training against rows one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny_trees import VOCAB, tiny_model, tiny_tokenizer
from torch.nn import functional

from agent.demonstrations.rows import IGNORED, DemonstrationRow
from agent.settings import SftSettings, TrainSettings

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]
SFT = SftSettings(epochs=1, batch_tokens=256)
TRAIN = TrainSettings(micro_batch_tokens=64)


def demonstrated() -> list[DemonstrationRow]:
    """Readers of three prompts, and a root of two turns, whose observation has no label."""
    rng = np.random.default_rng(0)

    def text(length: int) -> list[int]:
        return [int(token) for token in rng.integers(2, VOCAB, length)]

    rows = []
    for prompt in (text(30), text(20), text(25)):
        for _ in range(4):
            reply = text(3)
            labels = [IGNORED] * len(prompt) + reply
            rows.append(DemonstrationRow(input_ids=prompt + reply, labels=labels))
    root = text(40)
    labels = [IGNORED] * 10 + root[10:20] + [IGNORED] * 12 + root[32:]
    return [*rows, DemonstrationRow(input_ids=root, labels=labels)]


def trainer_of(folder: Path) -> Any:
    from agent.demonstrations.supervised import AdapterTrainer

    made = AdapterTrainer(
        *(tiny_model(), tiny_tokenizer(), demonstrated(), SFT, TRAIN),
        output_dir=folder,
        on_step=lambda step, figures: None,
    )
    generator = torch.Generator().manual_seed(1)
    adapted: Any = made.model
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data.normal_(std=0.1, generator=generator)
    return made


def test_loss_and_gradient_of_a_step_are_those_of_its_rows_one_by_one(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    labels = sum(label != IGNORED for row in demonstrated() for label in row["labels"])
    batches = list(trainer.get_train_dataloader())
    assert len(batches) > 2
    parts = [trainer.training_step(trainer.model, b, torch.tensor(labels)) for b in batches]
    found = [weight.grad.clone() for weight in weights]
    trainer.model.zero_grad()
    loss = torch.zeros(())
    for row in demonstrated():
        logits = trainer.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        targets = torch.tensor(row["labels"][1:])
        loss = loss + functional.cross_entropy(
            logits, targets, ignore_index=IGNORED, reduction="sum"
        )
    (loss / labels).backward()
    assert sum(parts).item() == pytest.approx(loss.item() / labels, abs=1e-5)
    for weight, gradient in zip(weights, found, strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-6)
    assert max(float(gradient.abs().max()) for gradient in found) > 1e-2
