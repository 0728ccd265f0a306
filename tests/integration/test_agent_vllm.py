"""Episodes through a server of vLLM (a stand-in) against those of the model in training itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_vllm import FakeVllm, serving
from helpers.vllm_trees import request, save_base
from peft import LoraConfig, get_peft_model

from agent.errors import CheckpointError, PolicyError
from agent.policies.base import TurnReply
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.players import players
from agent.settings import GenerationSettings
from agent.vllm.policy import VllmPolicy
from agent.vllm.server import VllmServer

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]
GENERATION = GenerationSettings(max_turn_tokens=12, max_frame_tokens=128)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_base(tmp_path_factory.mktemp("vllm") / "base")


@pytest.fixture(scope="module")
def loaded(base):
    return load_model(base, device="cpu")


@pytest.fixture
def fake(base) -> Iterator[FakeVllm]:
    with serving(base) as server:
        yield server


def served(fake: FakeVllm, loaded: Any, settings=GENERATION) -> VllmPolicy:
    server = VllmServer(fake.engine)
    return VllmPolicy(Conversations(*loaded, settings), server, settings)


def converse(policy: Any, turns: int, episodes: int = 5) -> list[list[TurnReply]]:
    """The turns of two frames of each episode, whose messages have many lengths."""
    played = []
    for turn in range(turns):
        asked = [
            request(n, turn, "word " * (1 + (7 * n + 3 * turn) % 5), 100 * n + turn, frame)
            for n in range(episodes)
            for frame in range(2)
        ]
        played.append(policy.act(asked))
    return played


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_its_turns_are_those_of_the_own_model(fake, loaded, temperature):
    # Alone and without a cache, as the stand-in plays. Only the last digits differ, because the own
    # model attends to keys that it doesn't repeat for each head.
    changes = {"temperature": temperature, "batch_frames": 1}
    settings = GENERATION.model_copy(update=changes | {"cache_tokens": 0})
    own = converse(TransformersPolicy(*loaded, settings), 6)
    theirs = converse(served(fake, loaded, settings), 6)
    for mine, other in zip(chain(*own), chain(*theirs), strict=True):
        assert replace(other, logprobs=[]) == replace(mine, logprobs=[])
        assert other.logprobs == pytest.approx(mine.logprobs, abs=1e-5)
    finishes = {(turn.finish, bool(turn.sampled_ids)) for turn in chain(*own)}
    ends = set() if temperature == 0 else {("stop", True)}
    assert finishes >= {("length", True), ("length", False)} | ends


@pytest.mark.parametrize(
    ("distortion", "message"),
    [
        ({"prompt_token_ids": [1, 2]}, "read other token ids than it was sent"),
        ({"logprobs": [-1.0]}, "0 log-probabilities for a turn of at most 12"),
        ({"token_ids": 5}, "0 token ids"),
        ({"token_ids": [3] * 13, "logprobs": {"token_logprobs": [-1.0] * 13}}, "13 token ids"),
        ({"token_ids": [3], "logprobs": {"token_logprobs": [None]}}, "is not a number"),
        ({"token_ids": [3], "logprobs": {"token_logprobs": [float("nan")]}}, "is not a number"),
    ],
)
def test_a_reply_that_cannot_be_trained_on_stops_the_run(fake, loaded, distortion, message):
    fake.distort = distortion
    with pytest.raises(PolicyError, match=message):
        served(fake, loaded).act([request(0, 0, "word", 0)])


def test_a_turn_that_the_server_gave_up_voids_its_episode(fake, loaded):
    fake.distort = {"finish_reason": "abort"}
    (turn,) = served(fake, loaded).act([request(0, 0, "word", 0)])
    assert turn == TurnReply(text="", finish="error")


def test_a_server_of_another_base_or_of_short_frames_is_refused(fake):
    def check(name: str, tokens: int) -> None:
        VllmServer(replace(fake.engine, model=name)).check(tokens)

    check(fake.name, fake.length)
    with pytest.raises(PolicyError, match="serves base-0123, but the present base is base-9"):
        check("base-9", 100)
    with pytest.raises(PolicyError, match="allows 256 tokens, but a frame may have 257"):
        check(fake.name, 257)
    fake.length, length = "many", fake.length
    with pytest.raises(PolicyError, match="allows many tokens, but a frame may have 100"):
        check(fake.name, 100)
    fake.length, fake.away = length, 1
    with pytest.raises(PolicyError, match=r"no server of vLLM answers .*\nvllm serve base"):
        check(fake.name, 100)


@pytest.fixture
def maker(loaded, fake, tmp_path) -> Iterator[Any]:
    with players(loaded[1], fake.engine, tmp_path) as made:
        yield made


@pytest.fixture
def adapted(base) -> Any:
    return get_peft_model(load_model(base)[0], LoraConfig(r=2, target_modules="all-linear"))


def test_each_step_has_its_own_adapter_and_the_former_one_is_gone(adapted, fake, maker, tmp_path):
    for step in (0, 1, 1, 2):
        maker.policy(adapted, GENERATION, step)
    prefixes = [Path(path).name.rpartition("-")[0] for path in fake.loads]
    assert prefixes == ["step-0", "step-1", "step-2"]
    assert list(fake.models) == [fake.name, Path(fake.loads[-1]).name]
    assert [str(path) for path in (tmp_path / ".adapters").iterdir()] == fake.loads[-1:]


@pytest.mark.parametrize("kind", [OSError, RuntimeError])  # safetensors has errors of its own
def test_an_adapter_that_cannot_be_written_is_said_to_be_so(adapted, maker, monkeypatch, kind):
    def full(*_: object, **__: object) -> None:
        raise kind("No space left on device")

    monkeypatch.setattr(adapted, "save_pretrained", full)
    with pytest.raises(CheckpointError, match=r"cannot be written for the engine .*No space"):
        maker.policy(adapted, GENERATION, 0)
