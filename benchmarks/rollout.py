"""Tokens per second of the sampling loop, beside `generate` of transformers.

    python -m benchmarks.rollout [--threads 1] [--batch 64] [--model DIR]

Two turns of a conversation: `generate` has to read the whole conversation again for the second,
the policy reads what is new. Without a model folder a nano-sized one with random weights is used.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any


def nano_sized() -> tuple[Any, Any]:
    """A random Llama of 0.57 M parameters and the nano tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent.nano.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["Find every sentence that answers."], 600)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            attention_bias=True,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return model.eval(), tokenizer


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=60, help="new tokens of a turn")
    parser.add_argument("--model", help="folder of a model; a random nano-sized one without")
    options = parser.parse_args()

    import torch

    from agent.models import TransformersPolicy, load_model
    from agent.policy import TurnRequest
    from agent.settings import GenerationSettings
    from env.models import Message

    torch.set_num_threads(options.threads)
    model, tokenizer = load_model(options.model, device="cpu") if options.model else nano_sized()
    settings = GenerationSettings(max_turn_tokens=options.tokens, batch_frames=options.batch)
    rng = random.Random(0)
    words = ["Kalvot", "Mirbex", "on", "7"]
    texts = [" ".join(rng.choices(words, k=rng.randint(15, 40))) for _ in range(options.batch)]

    def turn(policy: TransformersPolicy, number: int) -> list[Any]:
        requests = [
            TurnRequest(
                key=(place, 0),
                messages=[Message(role="user", content=text)],
                depth=0,
                kind="rlm",
                first=number == 0,
                seed=place,
            )
            for place, text in enumerate(texts)
        ]
        return policy.act(requests)

    def generate(prompts: list[list[int]]) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in prompts])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, do_sample=True, max_new_tokens=options.tokens, top_k=0
            )
        sampled = out[:, longest:]
        return int((sampled != tokenizer.pad_token_id).sum())

    for warm in (True, False):
        policy = TransformersPolicy(model, tokenizer, settings)
        conversations: list[list[int]] = [[] for _ in texts]
        lines = []
        for number in range(2):
            start = time.perf_counter()
            replies = turn(policy, number)
            ours = sum(len(r.sampled_ids) for r in replies) / (time.perf_counter() - start)
            prompts = [c + r.prompt_ids for c, r in zip(conversations, replies, strict=True)]
            start = time.perf_counter()
            theirs = generate(prompts) / (time.perf_counter() - start)
            conversations = [p + r.sampled_ids for p, r in zip(prompts, replies, strict=True)]
            lines.append((number + 1, sum(map(len, prompts)) / len(prompts), ours, theirs))
        if not warm:
            print("turn  prompt  policy tok/s  generate tok/s  ratio")
            for number, length, ours, theirs in lines:
                print(
                    f"{number:4}  {length:6.0f}  {ours:12.0f}  {theirs:14.0f}  {ours / theirs:5.2f}"
                )


if __name__ == "__main__":
    main()
