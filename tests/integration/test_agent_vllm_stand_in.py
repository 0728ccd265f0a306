"""The stand-in for an engine that plays many turns at once, with weights that are slightly off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.vllm_stand_in import StandIn, running
from helpers.vllm_trees import request, save_base

from agent.policies.base import TurnReply
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.settings import EngineSettings, GenerationSettings
from agent.vllm.policy import VllmPolicy
from agent.vllm.server import VllmServers

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it
SETTINGS = GenerationSettings(max_turn_tokens=12, max_frame_tokens=128)
ASKED = [request(n, 0, "word " * (1 + 3 * n % 7), n) for n in range(12)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("engine") / "base")


@pytest.fixture(scope="module")
def loaded(base: Path) -> Any:
    return load_model(base, device="cpu")


def played(base: Path, loaded: Any, noise: float) -> list[TurnReply]:
    """Turns that a stand-in samples in batches of five."""
    with running(StandIn(base, "base-0", 256, batch=5, noise=noise)) as server:
        servers = VllmServers(server.engine, EngineSettings(kind="vllm", timeout_s=30))
        conversations = Conversations(*loaded, SETTINGS)
        return VllmPolicy(conversations, servers, SETTINGS, concurrency=8).act(ASKED)


def test_turns_that_are_sampled_together_are_those_of_the_model(base: Path, loaded: Any) -> None:
    own = TransformersPolicy(*loaded, SETTINGS).act(ASKED)
    theirs = played(base, loaded, noise=0.0)
    for mine, other in zip(own, theirs, strict=True):
        assert other.sampled_ids == mine.sampled_ids
        assert other.logprobs == pytest.approx(mine.logprobs, abs=1e-5)


def test_noise_makes_another_policy_that_is_always_the_same(base: Path, loaded: Any) -> None:
    turns, again = (played(base, loaded, noise=0.05) for _ in range(2))
    assert [turn.sampled_ids for turn in again] == [turn.sampled_ids for turn in turns]
    apart = []
    for turn in turns:
        ids = torch.tensor([turn.prompt_ids + turn.sampled_ids])
        with torch.no_grad():
            logps = torch.log_softmax(loaded[0](ids).logits[0].float(), -1)
        start = len(turn.prompt_ids)
        exact = [float(logps[start + n - 1, token]) for n, token in enumerate(turn.sampled_ids)]
        apart += [abs(mine - theirs) for mine, theirs in zip(exact, turn.logprobs, strict=True)]
    assert sum(apart) / len(apart) > 1e-3
