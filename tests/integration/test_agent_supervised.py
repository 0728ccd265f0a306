"""Supervised training on demonstrations of a tiny Qwen3: rows, loss, and GRPO with its adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.random_model import flat, qwen, tokenizer

from agent.decoding import sampling
from agent.demonstrations.demonstrator import Demonstrator
from agent.demonstrations.rows import IGNORED, demonstration_rows, good_episodes
from agent.demonstrations.tokenised import TokenisedPolicy
from agent.errors import PolicyError
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import TransformersPolicy
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.settings import GenerationSettings, SftSettings, TrainSettings
from env.problems.store import ProblemStore
from tasks.config.params import Params

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]

TRAIN = TrainSettings(
    steps=1,
    problems_per_step=2,
    group_size=2,
    micro_batch_tokens=2048,
    min_group_std=0.0,
    generation=GenerationSettings(max_turn_tokens=480, max_frame_tokens=1536),
)
SFT = SftSettings(epochs=8, learning_rate=2e-2, batch_tokens=4096)


@pytest.fixture(scope="module")
def specs(server_problems: ProblemStore) -> list[EpisodeSpec]:
    ids = server_problems.ids("train", "easy")[:8]
    return [EpisodeSpec(name, seed=n, difficulty="easy") for n, name in enumerate(ids)]


@pytest.fixture(scope="module")
def shown(
    specs: list[EpisodeSpec],
    server_params: Params,
    server_url: str,
    server_problems: ProblemStore,
    trainer_imported: None,
) -> tuple[list[Trajectory], Demonstrator]:
    """Demonstrations with the ids of the tiny model; half of them have a slip."""
    problems = [server_problems.get(spec.problem_id) for spec in specs]
    policy = Demonstrator(problems, server_params.env, slips=0.5)
    conversations = Conversations(qwen(), tokenizer(), TRAIN.generation)
    return play(TokenisedPolicy(policy, conversations), server_url, specs, sessions=4), policy


def ids_of(episodes: Sequence[Trajectory]) -> list[list[int]]:
    """Ids of every frame, as a rollout has them."""
    return [
        [i for turn in frame.turns for i in turn.prompt_ids + turn.sampled_ids]
        for episode in episodes
        for frame in episode.frames.values()
    ]


def test_rows_have_the_ids_of_a_rollout_of_the_same_texts(
    shown: tuple[list[Trajectory], Demonstrator],
    specs: list[EpisodeSpec],
    server_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episodes, _ = shown
    policy = TransformersPolicy(qwen(), tokenizer(), TRAIN.generation)
    # The model's sampler writes what was demonstrated after the same ids; all else is the rollout.
    replies: dict[tuple[int, ...], list[int]] = {}
    for episode in episodes:
        for frame in episode.frames.values():
            read: list[int] = []
            for turn in frame.turns:
                read += turn.prompt_ids
                replies[tuple(read)] = turn.sampled_ids
                read += turn.sampled_ids

    def sample(model: Any, shape: Any, rows: Any, *_: Any, **__: Any) -> Iterator[Any]:
        for row in rows:
            row.sampled = replies[tuple(row.tokens)]
            row.logprobs = [0.0] * len(row.sampled)
            yield row

    monkeypatch.setattr(sampling, "sample", sample)
    rolled = play(policy, server_url, specs, sessions=4)
    assert [episode.reward for episode in rolled] == [episode.reward for episode in episodes]
    assert ids_of(rolled) == ids_of(episodes)
    rows = demonstration_rows(dict(enumerate(episodes)))
    assert [row["input_ids"] for row in rows] == ids_of(rolled)


def test_the_adapter_learns_in_float32_and_goes_on_into_grpo(
    shown: tuple[list[Trajectory], Demonstrator],
    specs: list[EpisodeSpec],
    server_url: str,
    tmp_path: Path,
) -> None:
    from peft import PeftModel

    from agent.demonstrations.supervised import count_steps, train_adapter
    from agent.training.trainer import TreeGRPOTrainer

    episodes, policy = shown
    rows = demonstration_rows(good_episodes(episodes, 0.7, 0.99), policy.mistakes)
    assert len(rows) > len(episodes)
    assert all(max(row["labels"]) > IGNORED for row in rows)
    losses: list[float] = []
    model = qwen()
    train_adapter(
        *(model, tokenizer(), rows, SFT, TRAIN),
        out=tmp_path / "adapter",
        on_step=lambda step, figures: losses.append(figures["loss"]),
    )
    assert len(losses) == count_steps(rows, SFT, TRAIN)
    assert losses[-1] < 0.8 * losses[0]
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}

    base = qwen()
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    before = {n: p.detach().clone() for n, p in adapted.named_parameters() if "lora_" in n}
    noted: list[dict[str, float]] = []

    def rollout(live: Any, step: int) -> list[list[Trajectory]]:
        short = GenerationSettings(max_turn_tokens=24, max_frame_tokens=512)
        player = TransformersPolicy(live, tokenizer(), short)
        # Equal trees with opposite advantages would have no gradient.
        drawn = [replace(spec, seed=seed) for spec in specs[:2] for seed in range(2)]
        played = play(player, server_url, drawn, sessions=4)
        for number, tree in enumerate(played):  # so that there is a signal
            tree.reward = float(number % 2)
        return [played[:2], played[2:]]

    trainer = TreeGRPOTrainer(
        *(adapted, tokenizer(), TRAIN),
        output_dir=tmp_path / "checkpoints",
        rollout=rollout,
        on_step=lambda step, logs: noted.append(logs),
        state=dict,
    )
    trainer.resume(None)  # raises if log-probabilities of rollout and trainer differ
    assert noted[0]["train/logprob_mismatch_max"] < 1e-3
    weights = dict(trainer.live_model.named_parameters())
    assert weights.keys() >= before.keys()
    assert any((weights[name] != kept).any() for name, kept in before.items())


def sft_trainer(folder: Path, model: Any) -> Any:
    """A trainer whose rows are random ids, with large weights in its adapter."""
    from agent.demonstrations.supervised import AdapterTrainer

    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 500, (8, 40), generator=rng).tolist()
    rows: Any = [{"input_ids": row, "labels": [IGNORED] * 20 + row[20:]} for row in ids]
    train = TRAIN.model_copy(update={"micro_batch_tokens": 160})
    made = AdapterTrainer(
        *(model, tokenizer(), rows, SFT, train),
        output_dir=folder,
        on_step=lambda step, figures: None,
    )
    generator = torch.Generator().manual_seed(1)
    weights: Any = made.model
    for name, weight in weights.named_parameters():
        if "lora_" in name:
            weight.data.normal_(std=0.02 if "lora_B" in name else 0.1, generator=generator)
    return made


def sft_gradient(folder: Path, model: Any) -> torch.Tensor:
    """Gradient of two micro-batches of a step with 100,000 labels."""
    trainer = sft_trainer(folder, model)
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == 2
    for batch in batches:
        trainer.training_step(trainer.model, batch, torch.tensor(100_000))
    return flat([weight.grad for weight in trainer.model.parameters() if weight.requires_grad])


def test_gradients_of_a_float16_model_are_those_of_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            on_step=lambda step, figures: None,
        )
    assert not (tmp_path / "adapter").exists()
