"""The trainer's losses against plain loops over one step worked by hand.

Group 0: a tree of depth 2 with an `llm` frame and a child that was cut (reward 0.9), a root alone
(0.3), and a void tree. Group 1: a tree whose child gave no answer (0.8), a root alone (0.2).
Without scaling the advantages are +0.3, -0.3, none, +0.3, -0.3.

    tree 0   0 root, turns of 4 and 3 tokens           weight 1     advantage +0.3
             ├─ 1 child, 3 tokens                             1/3             +0.3
             │  └─ 4 grandchild, 2 tokens                     1/3             +0.3
             ├─ 2 llm frame, 2 tokens                         1/3             +0.3
             └─ 3 child that was cut, 5 tokens                0, but one of k = 3
    tree 1   0 root, 2 tokens                                 1               -0.3
    tree 2   as tree 0, void                                  0
    tree 3   0 root, 4 tokens                                 1               +0.3
             └─ 1 child that used up its turns, 3 tokens      1               min(+0.3, 0)
    tree 4   0 root, 3 tokens                                 1               -0.3
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from helpers import tiny_trees
from helpers.tiny_trees import note_logprobs, random_turn, sampled_logps

from agent.errors import PolicyError
from agent.rollouts.trajectory import FrameRecord, Trajectory
from agent.settings import TrainSettings

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]

SETTINGS = TrainSettings(
    steps=2,
    problems_per_step=2,
    group_size=3,
    learning_rate=1e-2,
    warmup_steps=0,
    scale_rewards="none",
    micro_batch_tokens=1000,
    max_step_kl=1e9,
    save_every=100,
)

FRAMES = [
    {0: (1, 0.3), 1: (1 / 3, 0.3), 4: (1 / 3, 0.3), 2: (1 / 3, 0.3)},
    {0: (1, -0.3)},
    {},
    {0: (1, 0.3), 1: (1, 0.0)},
    {0: (1, -0.3)},
]
"""Of each tree: frame -> (weight, advantage), where the weight is not 0."""

DAPO = 7 + (3 + 2 + 2) / 3 + 2 + (4 + 3) + 3
"""Sum of weight x mask."""


def play(model: torch.nn.Module, step: int) -> list[list[Trajectory]]:
    turn = partial(random_turn, np.random.default_rng(step))

    def deep(**outcome) -> Trajectory:
        frames = {
            0: FrameRecord(0, None, 0, "rlm", [turn([2, 3, 4], 4), turn([5, 6], 3)], "final"),
            1: FrameRecord(1, 0, 1, "rlm", [turn([7, 8], 3)], "final"),
            2: FrameRecord(2, 0, 1, "llm", [turn([9], 2)], "final"),
            3: FrameRecord(3, 0, 1, "rlm", [turn([10], 5)], "budget"),
            4: FrameRecord(4, 1, 2, "rlm", [turn([11, 12, 13, 14], 2)], "final"),
        }
        return Trajectory("p", "easy", frames=frames, **outcome)

    def root(length: int, reward: float) -> Trajectory:
        frames = {0: FrameRecord(0, None, 0, "rlm", [turn([2, 3], length)], "final")}
        return Trajectory("p", "easy", frames=frames, reward=reward)

    group = [deep(reward=0.9), root(2, 0.3), deep(void="connection lost")]
    silent = root(4, 0.8)
    silent.frames[1] = FrameRecord(1, 0, 1, "rlm", [turn([15] * 6, 3)], "max_turns")
    groups = [group, [silent, root(3, 0.2)]]
    note_logprobs(model, [tree for group in groups for tree in group])
    return groups


def make_trainer(folder, rollout=play, **changes):
    return tiny_trees.make_trainer(folder, SETTINGS.model_copy(update=changes), rollout)


def move(model: torch.nn.Module) -> None:
    """Another policy: random steps of what is trained."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.06 * torch.randn(weight.shape, generator=generator)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def written_out(model: torch.nn.Module, trees: Sequence[Trajectory]) -> torch.Tensor:
    """The loss of the whole step, frame by frame; ratios are 1."""
    total = torch.zeros(())
    for index, frames in enumerate(FRAMES):
        for number, (weight, advantage) in frames.items():
            now = sampled_logps(model, trees[index].frames[number].turns)
            total = total - weight * advantage * torch.exp(now - now.detach()).sum()
    return total / DAPO


def test_loss_and_gradient_are_those_written_out(tmp_path):
    trainer = make_trainer(tmp_path)
    model = trainer.live_model
    move(model)  # a fresh adapter has half of its gradients
    trees = [tree for group in play(model, 1) for tree in group]
    loss = trainer.training_step(model, [0])
    found = gradients(model)
    model.zero_grad()
    expected = written_out(model, trees)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


def test_rows_without_an_effect_are_left_out(tmp_path):
    trainer = make_trainer(tmp_path, steps=10)
    trainer.training_step(trainer.live_model, [2])  # step 3 compares nothing
    assert trainer._metrics["train"]["train/rows_forwarded"] == [7]


def test_an_update_does_not_depend_on_the_micro_batches(tmp_path):
    """14 rows of 3 to 12 tokens: of weight 1, 1/3 and 0, masked, and padded to their longest."""
    weights = {}
    for m in (24, 1000):
        trainer = make_trainer(tmp_path / str(m), micro_batch_tokens=m, max_step_kl=2e-3, steps=1)
        start = {n: p.detach().clone() for n, p in trainer.live_model.named_parameters()}
        trainer.resume(None)
        weights[m] = dict(trainer.live_model.named_parameters())
    moved = max((weights[1000][name] - weight).abs().max().item() for name, weight in start.items())
    assert moved > 1e-4
    for name, weight in weights[1000].items():
        torch.testing.assert_close(weights[24][name], weight, rtol=0, atol=0.01 * moved)


def test_a_full_gpu_names_the_settings_to_lower(tmp_path, monkeypatch):
    def full(*args, **options):
        raise torch.OutOfMemoryError

    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(trainer, "compute_loss", full)
    with pytest.raises(PolicyError, match=r"Lower train\.micro_batch_tokens \(now \d+\)"):
        trainer.training_step(trainer.live_model, [0])
