"""Supervised training of an adapter: its loss against rows one by one, its ends, its resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.random_model import flat, qwen, tokenizer
from helpers.tiny_trees import VOCAB, tiny_model, tiny_tokenizer
from torch.nn import functional

from agent.demonstrations.sft_rows import IGNORED, DemonstrationRow
from agent.errors import PolicyError
from agent.settings import SftSettings, TrainSettings
from agent.training import checkpoints
from agent.training.checkpoints import Resume

# One group, so that one process imports TRL.
pytestmark = [pytest.mark.usefixtures("trainer_imported"), pytest.mark.xdist_group("trainer")]

TRAIN = TrainSettings(micro_batch_tokens=2048)
SFT = SftSettings(epochs=4, learning_rate=2e-2, batch_tokens=4096)


def trainer_of(folder: Path, model: Any, tokenizer: Any, rows: Any, tokens: int) -> Any:
    """Trainer of an adapter whose weights are large; micro-batches have at most `tokens`."""
    from agent.demonstrations.supervised import AdapterTrainer

    made: Any = AdapterTrainer(
        *(model, tokenizer, rows, SFT, TrainSettings(micro_batch_tokens=tokens)),
        on_step=lambda step, figures: None,
        start=Resume(folder),
    )
    generator = torch.Generator().manual_seed(1)
    for name, weight in made.model.named_parameters():
        if "lora_" in name:
            weight.data.normal_(std=0.02 if "lora_B" in name else 0.1, generator=generator)
    return made


def steps_gradient(trainer: Any, labels: int) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a step of several micro-batches."""
    batches = list(trainer.get_train_dataloader())
    assert len(batches) > 1
    parts = [trainer.training_step(trainer.model, b, torch.tensor(labels)) for b in batches]
    return float(sum(parts)), gradient(trainer.model)


def gradient(model: Any) -> torch.Tensor:
    return flat([weight.grad.clone() for weight in model.parameters() if weight.requires_grad])


def sft_gradient(folder: Path, model: Any) -> torch.Tensor:
    """Gradient of random ids; their step has 100,000 labels."""
    ids = torch.randint(3, 500, (8, 40), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [{"input_ids": row, "labels": [IGNORED] * 20 + row[20:]} for row in ids]
    return steps_gradient(trainer_of(folder, model, tokenizer(), rows, 160), 100_000)[1]


def test_gradients_of_a_float16_model_are_those_of_float32(tmp_path, monkeypatch):
    from agent.demonstrations import supervised

    cosine = torch.nn.CosineSimilarity(dim=0)
    exact = sft_gradient(tmp_path / "exact", qwen(layers=4))
    half = sft_gradient(tmp_path / "half", qwen(layers=4, dtype=torch.float16))
    assert cosine(half, exact) > 0.999
    assert float(half.norm() / exact.norm()) == pytest.approx(1, abs=0.01)
    monkeypatch.setattr(supervised, "needs_scale", lambda model: False)
    bare = sft_gradient(tmp_path / "bare", qwen(layers=4, dtype=torch.float16))
    assert cosine(bare, exact) < 0.99  # control


def test_a_training_that_breaks_the_weights_writes_no_adapter(tmp_path: Path) -> None:
    from agent.demonstrations.supervised import train_adapter

    row: Any = {"input_ids": list(range(5, 45)), "labels": list(range(5, 45))}
    settings = SFT.model_copy(update={"learning_rate": 1e30, "batch_tokens": 128})
    with pytest.raises(PolicyError, match=r"not finite.*Lower warmstart\.sft\.learning_rate"):
        train_adapter(
            *(qwen(), tokenizer(), [row], settings, TRAIN),
            out=tmp_path / "adapter",
            start=Resume(tmp_path / "checkpoints"),
            on_step=lambda step, figures: None,
        )
    assert not (tmp_path / "adapter").exists()


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


def test_a_training_learns_and_after_a_kill_ends_with_the_same_weights(tmp_path, monkeypatch):
    from agent.demonstrations import supervised

    monkeypatch.setattr(supervised, "SAVE_EVERY", 1)
    settings = SFT.model_copy(update={"epochs": 3, "batch_tokens": 64})
    few = TrainSettings(micro_batch_tokens=64)
    killed_at, losses = 7, {}

    def teach(name: str, start: Path | None = None, last: int = 10**9) -> torch.Tensor:
        def on_step(step: int, figures: dict[str, float]) -> None:
            losses[step] = figures["loss"]
            if step == last:
                raise KeyboardInterrupt

        model, folder = tiny_model(), tmp_path / name
        supervised.train_adapter(
            *(model, tiny_tokenizer(), demonstrated(), settings, few),
            out=folder / "adapter",
            on_step=on_step,
            start=Resume(folder, start, {"settings": "a"}),
        )
        return flat([weight for weight in model.parameters() if weight.requires_grad])

    whole = teach("whole")
    count = supervised.count_steps(demonstrated(), settings, few)
    assert list(losses) == list(range(1, count + 1))
    first, *_, last = np.array_split(list(losses.values()), 3)
    assert last.mean() < first.mean()
    with pytest.raises(KeyboardInterrupt):
        teach("killed", last=killed_at)
    start = checkpoints.choose(tmp_path / "killed", {"settings": "a"})
    assert start.state is not None
    assert count // 3 < start.state["step"] < killed_at  # in the second epoch
    losses.clear()
    assert torch.equal(teach("killed", start.checkpoint), whole)
    assert list(losses) == list(range(killed_at, count + 1))
    assert checkpoints.choose(tmp_path / "killed", {"settings": "b"}).checkpoint is None


def test_loss_and_gradient_of_a_step_are_those_of_its_rows_one_by_one(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, tiny_model(), tiny_tokenizer(), demonstrated(), 64)
    labels = sum(label != IGNORED for row in demonstrated() for label in row["labels"])
    found, mine = steps_gradient(trainer, labels)
    trainer.model.zero_grad()
    loss = torch.zeros(())
    for row in demonstrated():
        logits = trainer.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        targets = torch.tensor(row["labels"][1:])
        loss += functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    (loss / labels).backward()
    assert found == pytest.approx(loss.item() / labels, abs=1e-5)
    torch.testing.assert_close(mine, gradient(trainer.model), rtol=1e-4, atol=1e-6)
    assert float(mine.abs().max()) > 1e-2
