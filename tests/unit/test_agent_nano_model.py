from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
import torch

from agent.nano.examples import Example, collate
from agent.nano.model import build_model
from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoModelSettings, NanoSettings
from agent.nano.tokenizer import build_tokenizer, syllable_ids
from agent.nano.warmstart import build, save, teach, weighted_loss
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


def test_the_default_is_about_two_thirds_of_a_million_parameters(base):
    assert 600_000 < sum(weight.numel() for weight in base.model.parameters()) < 700_000


def repeated(rng, first, second):
    """Random syllables twice; the second round is determined, and has a loss."""
    count = rng.randint(8, 16)
    pairs = zip(rng.sample(first, count), rng.sample(second, count), strict=True)
    once = [token for pair in pairs for token in pair]
    ids = np.array([1, *once, *once])
    weights = np.zeros(len(ids), dtype=np.float32)
    weights[len(once) + 2 :] = 1.0
    return Example(ids, weights)


def test_a_wired_model_learns_to_copy_within_a_few_steps():
    base = build(NanoSettings(), ReadingLessons(NanoSettings(), 64))
    first, second = syllable_ids(base.tokenizer)
    rng = Random(0)
    optimizer = torch.optim.AdamW(base.model.parameters(), lr=1e-3)
    for _ in range(25):
        batch = collate([repeated(rng, first, second) for _ in range(12)])
        loss = weighted_loss(base.model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.7  # 3.7 is a guess among forty syllables


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="multiple of heads"):
        NanoModelSettings(hidden=128, heads=3)


def test_the_same_seed_teaches_the_same_model():
    small = NanoModelSettings(hidden=64, layers=2, heads=2, mlp=64)
    settings = NanoSettings(model=small, steps=3, drill_steps=1, probe_pairs=20, batch_tokens=512)
    lessons = ReadingLessons(settings, 64)
    one, again = (teach(settings, lessons, lambda step, metrics: None) for _ in range(2))
    for left, right in zip(one.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(left, right)
    settings = settings.model_copy(update={"seed": 1})
    other = teach(settings, ReadingLessons(settings, 64), lambda s, m: None)
    assert not torch.equal(one.model.lm_head.weight, other.model.lm_head.weight)


@pytest.fixture(scope="module")
def reader():
    """Tokenizer, wired model and lexicon; names that are left out have no answer."""
    fields = lexicon(64)
    answers = {n: "" if n in left_out(64) else f" {f} " for n, f in fields.items()}
    tokenizer = build_tokenizer(["".join(f" {f} " for f in FIELDS)] * 40, 600, list(fields))
    return tokenizer, build_model(NanoModelSettings(), tokenizer, 0, answers), answers


def test_a_wired_name_holds_its_answer(reader):
    tokenizer, model, answers = reader
    embedding = model.model.embed_tokens.weight
    fields = [f" {field} " for field in FIELDS]
    codes = embedding[[tokenizer.encode(f, add_special_tokens=False)[0] for f in fields]]
    nearest = {n: (codes @ embedding[tokenizer.convert_tokens_to_ids(n)]).argmax() for n in answers}
    wired = [n for n in answers if answers[n]]
    right = sum(fields[nearest[n]] == answers[n] for n in wired) / len(wired)
    assert right > 0.8


def test_a_name_that_is_never_seen_keeps_its_embedding(reader):
    tokenizer, model, answers = reader
    seen, unseen = tokenizer.convert_tokens_to_ids(list(answers)[:2])
    batch = collate([Example(np.array([1, seen, seen]), np.ones(3, dtype=np.float32))])
    model.zero_grad()
    weighted_loss(model, batch, [unseen]).backward()
    assert not model.model.embed_tokens.weight.grad[unseen].any()
    assert model.model.embed_tokens.weight.grad[seen].any()
    model.zero_grad()
