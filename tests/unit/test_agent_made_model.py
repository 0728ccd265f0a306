from __future__ import annotations

from random import Random

import pytest
import torch

from agent.made.lessons import MadeLessons, TalkEncoder
from agent.made.model import LAYERS
from agent.made.teach import build, teach
from agent.settings import MadeSettings
from env.problems.lexicon import FIELDS

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]
LEXICON = 256


@pytest.fixture(scope="module")
def lessons():
    return MadeLessons(LEXICON, seed=0)


@pytest.fixture(scope="module")
def base(lessons):
    made = build(lessons, seed=0)
    made.model.set_attn_implementation("eager")
    return made


def test_it_is_a_plain_qwen3_of_at_most_a_million_parameters(base):
    config = base.model.config
    assert config.model_type == "qwen3"
    assert config.tie_word_embeddings
    assert all(hasattr(layer.self_attn, "q_norm") for layer in base.model.model.layers)
    assert sum(weight.numel() for weight in base.model.parameters()) <= 1_000_000


def test_the_seed_decides_every_bit():
    settings = MadeSettings(steps=2, batch_tokens=256, seed=3)
    losses = []
    lessons = MadeLessons(LEXICON, settings.seed)
    first, second = (teach(settings, lessons, lambda _, loss: losses.append(loss)) for _ in "ab")
    assert losses[:2] == losses[2:]
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    another = teach(settings.model_copy(update={"seed": 4}), lessons, lambda *_: None)
    assert not torch.equal(first.model.lm_head.weight, another.model.lm_head.weight)


def attention(base, talk):
    """Tokens up to the turn, and the attentions [layer][head, T, T]."""
    example = TalkEncoder(base.tokenizer).encode(talk)
    ids = torch.tensor(example.ids[: int((example.weights > 0).argmax())])
    with torch.no_grad():
        found = base.model(ids[None], output_attentions=True).attentions
    return [base.tokenizer.decode([int(token)]) for token in ids], [layer[0] for layer in found]


def test_before_training_a_head_already_finds_the_fitting_line(base, lessons):
    rng, finds, chance = Random("wiring"), [], []
    while len(finds) < 30:
        talk = lessons.reader(rng)
        tokens, layers = attention(base, talk)
        asked = next(token for token in tokens if token in FIELDS)
        shown = [place for place, token in enumerate(tokens) if token in lessons.fields]
        fitting = [place for place in shown if lessons.fields[tokens[place]] == asked]
        if len(fitting) == 1 and len(shown) == 4:
            finds.append(float(layers[LAYERS - 1][0, -1, fitting[0]]))
            chance.append(float(layers[LAYERS - 1][1, -1, fitting[0]]))
    assert sum(finds) / 30 > 0.6
    assert sum(chance) / 30 < 0.2  # a head without wiring
