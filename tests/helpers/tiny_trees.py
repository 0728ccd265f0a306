"""A model, a tokenizer and turns so small that a loss can be written out beside the trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from agent.policies.base import TurnReply
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import TrainSettings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 32
SETTINGS = TrainSettings(
    steps=4,
    problems_per_step=2,
    group_size=4,
    learning_rate=1e-2,
    warmup_steps=0,
    min_group_std=0.0,
    micro_batch_tokens=40,
    save_every=2,
)


def tiny_model() -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCAB)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


def random_turn(rng: np.random.Generator, prompt: list[int], length: int) -> TurnRecord:
    """A turn of random tokens, whose log-probabilities `note_logprobs` adds."""
    sampled = [int(token) for token in rng.integers(2, VOCAB, length)]
    return TurnRecord("", "", "stop", prompt_ids=prompt, sampled_ids=sampled)


def note_logprobs(model: torch.nn.Module, trees: Sequence[Trajectory]) -> None:
    """Give all turns the model's log-probabilities of their tokens, from one pass."""
    frames = [frame for tree in trees for frame in tree.frames.values()]
    texts = [[i for turn in f.turns for i in turn.prompt_ids + turn.sampled_ids] for f in frames]
    # Padding on the right is seen by no token before it.
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    with torch.no_grad():
        logps = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
        rows = logps.gather(2, ids[:, 1:, None])[:, :, 0].tolist()
    for frame, row in zip(frames, rows, strict=True):
        at = -1  # the column before a token predicts it
        for turn in frame.turns:
            at += len(turn.prompt_ids)
            turn.logprobs = row[at : at + len(turn.sampled_ids)]
            at += len(turn.sampled_ids)


def sampled_logps(
    model: torch.nn.Module, turns: Sequence[TurnRecord | TurnReply], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of all sampled tokens, from one pass over the whole conversation."""
    ids = [token for turn in turns for token in turn.prompt_ids + turn.sampled_ids]
    logits = model(input_ids=torch.tensor([ids])).logits[0].float() / temperature
    logps = torch.log_softmax(logits, -1)
    places = [m for t in turns for m in [0] * len(t.prompt_ids) + [1] * len(t.sampled_ids)]
    return torch.stack([logps[at - 1, ids[at]] for at, sampled in enumerate(places) if sampled])


def play_trees(
    model: torch.nn.Module, step: int, scale: int = 1, more: int = 0
) -> list[list[Trajectory]]:
    """Two groups of four trees: a root of two turns, and up to two children of unequal length.

    Any tokens will do, as long as the log-probabilities are the model's. `scale` is a factor of
    the ids in prompts, `more` a number of further tokens in each turn of the root.
    """
    groups = []
    for problem in range(2):
        group = []
        for sample in range(4):
            rng = np.random.default_rng([step, problem, sample])
            first = random_turn(rng, [2 * scale, 3 * scale, problem + 4 * scale], 4 + more)
            second = random_turn(rng, [5 * scale, 6 * scale], 3 + more)
            frames = {0: FrameRecord(0, None, 0, "rlm", [first, second], "final")}
            for child in range(1, 1 + sample % 3):
                only = random_turn(rng, [8 * scale] * (2 + 3 * child), 2 + child)
                frames[child] = FrameRecord(child, 0, 1, "rlm", [only], "final")
            group.append(Trajectory(f"p{problem}", "easy", frames=frames, reward=rng.random()))
        groups.append(group)
    note_logprobs(model, [tree for group in groups for tree in group])
    return groups


def make_trainer(
    folder: Path,
    settings: TrainSettings = SETTINGS,
    rollout=play_trees,
    log=None,
    model=None,
    tokenizer=None,
    **options,
):
    from agent.training.trainer import TreeGRPOTrainer

    steps: list[tuple[int, dict[str, float]]] = [] if log is None else log
    return TreeGRPOTrainer(
        tiny_model() if model is None else model,
        tokenizer or tiny_tokenizer(),
        settings,
        output_dir=folder,
        rollout=rollout,
        on_step=lambda step, logs: steps.append((step, logs)) or {"reward/overall": float(step)},
        state=lambda: {"fingerprint": {"a": 1}, "seen": [step for step, _ in steps]},
        **options,
    )
