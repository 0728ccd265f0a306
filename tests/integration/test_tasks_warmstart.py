from __future__ import annotations

import pytest
from helpers.recorder import Recorder

from agent.models.model_files import warn_without_gpu
from agent.policies.base import TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.settings import GenerationSettings, ModelSettings
from env.models import Message
from tasks import warmstart
from tasks.config import resolve
from tasks.errors import ConfigError, StageError

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

SMALL = [
    "threads=1",
    "prepare.synthetic.collections={train: 3, validation: 1, test: 1}",
    "warmstart.nano.steps=12",
    "warmstart.nano.drill_steps=4",
    "warmstart.nano.probe_pairs=20",
    "warmstart.nano.batch_tokens=1024",
]

NO_ENGINE = ["engine.kind=vllm", "engine.python=no/such/python"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    base = tmp_path / "models" / "base"
    monkeypatch.setattr(warmstart, "BASE", base)
    return base


def test_a_taught_base_is_written_and_measured(place, caplog):
    run = Recorder()
    assert warmstart.run(resolve(overrides=SMALL), run) == place
    model, tokenizer = load_model(place)
    assert model.config.vocab_size == len(tokenizer)
    assert run.metrics["warmstart/steps"] == 12
    assert run.metrics["warmstart/loss"] > 0
    assert "read less well than required" in caplog.text


def test_none_writes_an_untaught_base(place):
    run = Recorder()
    warmstart.run(resolve(overrides=[*SMALL, "warmstart.kind=none"]), run)
    policy = TransformersPolicy(*load_model(place), GenerationSettings(temperature=0.0))
    messages = [Message(role="user", content="Report Kesrog on Toxlim.")]
    request = TurnRequest((0, 0), messages, depth=0, kind="rlm", first=True, seed=0)
    assert "```repl" not in policy.act([request])[0].text
    assert "warmstart/loss" not in run.metrics


def test_a_missing_engine_is_refused_before_the_base_is_made(place):
    with pytest.raises(ConfigError, match=r"engine\.python: .*Run make setup-vllm"):
        warmstart.run(resolve(overrides=[*SMALL, *NO_ENGINE]), Recorder())
    assert not place.parent.exists()


def test_a_vocabulary_too_small_for_the_names_is_refused_before_anything_is_taught(place):
    run = Recorder()
    with pytest.raises(StageError, match=r"Raise warmstart\.nano\.model\.vocab"):
        warmstart.run(resolve(overrides=[*SMALL, "warmstart.nano.model.vocab=400"]), run)
    assert not place.parent.exists()
    assert run.metrics == {}


def test_a_model_on_the_cpu_is_warned_of(caplog, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    warn_without_gpu(ModelSettings())
    assert caplog.text == ""
    warn_without_gpu(ModelSettings(source="Qwen/Qwen3-0.6B"))
    assert "torch finds no GPU: it runs on the CPU" in caplog.text


def test_an_interrupt_leaves_the_old_base(place, monkeypatch):
    place.mkdir(parents=True)
    (place / "old").touch()

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("agent.nano.warmstart.save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        warmstart.run(resolve(overrides=[*SMALL, "warmstart.kind=none"]), Recorder())
    assert [path.name for path in place.iterdir()] == ["old"]
    assert [path.name for path in place.parent.iterdir()] == ["base"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("prepare.source=files", "prepare.source=synthetic, or warmstart.kind=none"),
        ("env.prompt_style=full", "prompt_style"),
        ("env.search_window=40", "search_window"),
        ("env.limits.max_depth=0", "max_depth"),
        ("env.limits.max_turns=1", "max_turns"),
    ],
)
def test_settings_that_the_demonstrations_do_not_know_are_refused(place, override, word):
    with pytest.raises(ConfigError, match=word):
        warmstart.run(resolve(overrides=[*SMALL, override]), Recorder())
    assert not place.exists()


def test_a_lexicon_without_enough_taught_names_is_refused(place):
    params = resolve()  # a world of few papers has room for a small lexicon
    synthetic = params.prepare.synthetic.model_copy(update={"lexicon": 48})
    prepare = params.prepare.model_copy(update={"synthetic": synthetic})
    with pytest.raises(ConfigError, match="lexicon is 48"):
        warmstart.run(params.model_copy(update={"prepare": prepare}), Recorder())
    assert not place.exists()
