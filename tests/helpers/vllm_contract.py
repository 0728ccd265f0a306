"""Names in vLLM's interface, recorded from its wheel without installing it.

tests/data/vllm_contract.json has the flags of `vllm serve`, the fields of requests and answers, the
ranks of adapters and the environment variables. This file at 809c3ab records them from another
wheel.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parents[1] / "data/vllm_contract.json"
SAMPLING = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "watermarking": False,
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""Values that make the sampled distribution that of the model."""
GIVEN = ("model", "prompt", "max_tokens", "temperature", "seed", "stop_token_ids")
"""Fields whose values depend on the turn."""


def contract() -> dict[str, Any]:
    """The recorded names, by kind."""
    recorded: dict[str, Any] = json.loads(CONTRACT.read_text(encoding="utf-8"))
    return recorded
