from __future__ import annotations

import pytest
from helpers.recorder import Recorder

from agent.policies.base import TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.settings import GenerationSettings
from env.models import Message
from tasks import paths, warmstart
from tasks.config import resolve
from tasks.errors import ConfigError

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it


FEW = "prepare.synthetic.collections={train: 3, validation: 1, test: 1}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    base = tmp_path / "models" / "base"
    monkeypatch.setattr(paths, "BASE", base)
    return base


def test_none_writes_an_untaught_base(place):
    run = Recorder()
    warmstart.run(resolve(overrides=["threads=1", FEW, "warmstart.kind=none"]), run)
    policy = TransformersPolicy(*load_model(place), GenerationSettings(temperature=0.0))
    messages = [Message(role="user", content="Report Kesrog on Toxlim.")]
    request = TurnRequest((0, 0), messages, depth=0, kind="rlm", first=True, seed=0)
    assert "```repl" not in policy.act([request])[0].text
    assert "warmstart/loss" not in run.metrics


def test_an_interrupt_leaves_the_old_base(place, monkeypatch):
    place.mkdir(parents=True)
    (place / "old").touch()

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("tasks.warmstart.save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        warmstart.run(resolve(overrides=["threads=1", FEW, "warmstart.kind=none"]), Recorder())
    assert [path.name for path in place.iterdir()] == ["old"]
    assert [path.name for path in place.parent.iterdir()] == ["base"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("prepare.source=files", "prepare.source=synthetic, or warmstart.kind=none"),
        ("env.prompt_style=full", "prompt_style"),
        ("env.limits.max_depth=0", "max_depth"),
        ("env.limits.max_turns=1", "max_turns"),
    ],
)
def test_settings_that_the_demonstrations_do_not_know_are_refused(place, override, word):
    with pytest.raises(ConfigError, match=word):
        warmstart.run(resolve(overrides=["threads=1", FEW, override]), Recorder())
    assert not place.exists()
