from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from agent.nano.examples import Example, collate
from agent.nano.model import build_model
from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoModelSettings, NanoSettings
from agent.nano.tokenizer import build_tokenizer
from agent.nano.warmstart import build, save, weighted_loss
from env.problems.lexicon import FIELDS, lexicon
from env.problems.lexicon import untaught as left_out

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]


@pytest.fixture(scope="module")
def base():
    return build(NanoSettings(), ReadingLessons(NanoSettings(), 512))


def test_the_folder_loads_as_a_plain_llama(base, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save(base, tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert "auto_map" not in config
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    assert tokenizer.get_vocab() == base.tokenizer.get_vocab()
    assert tokenizer.chat_template == base.tokenizer.chat_template
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    ids = torch.tensor([tokenizer.encode("Report Kesrog on Toxlim.")])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, base.model.eval()(ids).logits)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="multiple of heads"):
        NanoModelSettings(hidden=128, heads=3)


@pytest.fixture(scope="module")
def reader():
    """Tokenizer, wired model and lexicon; names that are left out have no answer."""
    fields = lexicon(64)
    answers = {n: "" if n in left_out(64) else f" {f} " for n, f in fields.items()}
    tokenizer = build_tokenizer(["".join(f" {f} " for f in FIELDS)] * 40, 600, list(fields))
    return tokenizer, build_model(NanoModelSettings(), tokenizer, 0, answers), answers


def test_a_name_that_is_never_seen_keeps_its_embedding(reader):
    tokenizer, model, answers = reader
    seen, unseen = tokenizer.convert_tokens_to_ids(list(answers)[:2])
    batch = collate([Example(np.array([1, seen, seen]), np.ones(3, dtype=np.float32))])
    model.zero_grad()
    weighted_loss(model, batch, [unseen]).backward()
    assert not model.model.embed_tokens.weight.grad[unseen].any()
    assert model.model.embed_tokens.weight.grad[seen].any()
    model.zero_grad()
