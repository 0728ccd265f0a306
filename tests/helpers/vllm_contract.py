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
GIVEN = ("model", "prompt", "max_tokens", "temperature", "seed", "stop_token_ids")
"""Fields whose values depend on the turn."""


def contract() -> dict[str, Any]:
    """The recorded names, by kind."""
    recorded: dict[str, Any] = json.loads(CONTRACT.read_text(encoding="utf-8"))
    return recorded
