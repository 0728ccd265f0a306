"""Requests and command lines against the names that vLLM's wheel has (`helpers/vllm_contract`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.vllm_contract import SAMPLING, contract

from agent.settings import EngineSettings
from agent.vllm.policy import PURE
from agent.vllm.server import ENVIRONMENT, LORA_RANKS, serve_arguments
from tasks.config import resolve
from tasks.errors import ConfigError

ROOT = Path(__file__).parents[2]


def arguments(rank: int = 16) -> list[str]:
    return serve_arguments(
        Path("models/base"),
        "base-1",
        EngineSettings(kv_gb=0.5),
        port=8123,
        dtype="auto",
        frame_tokens=512,
        rank=rank,
    )


def test_every_flag_and_variable_is_one_of_vllm() -> None:
    known = {*contract()["serve"]}
    flags = [text for text in arguments() if text.startswith("--")]
    assert len(flags) > 10
    assert set(flags) <= known
    others = {"HF_HUB_OFFLINE"}  # of huggingface_hub
    assert ENVIRONMENT.keys() - others <= {*contract()["variables"]}


def test_the_server_listens_on_loopback_and_keeps_the_models_distribution() -> None:
    text = " ".join(arguments())
    for part in (
        "serve models/base --served-model-name base-1 --host 127.0.0.1 --port 8123",
        "--max-model-len 512 --kv-cache-memory-bytes 536870912",
        "--logprobs-mode processed_logprobs --generation-config vllm --enable-lora",
    ):
        assert part in text


@pytest.mark.parametrize(("rank", "most"), [(1, 1), (2, 8), (16, 16), (17, 32), (256, 256)])
def test_an_adapter_of_any_rank_fits(rank: int, most: int) -> None:
    found = arguments(rank)
    assert found[found.index("--max-lora-rank") + 1] == str(most)
    assert list(LORA_RANKS) == contract()["lora_ranks"]


def test_every_field_of_a_request_is_one_of_vllm_and_all_defaults_are_replaced() -> None:
    assert PURE == SAMPLING
    assert {*PURE} <= {*contract()["completion_request"]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.urls=[http://127.0.0.1:8000]"], "urls name servers of vLLM. Set kind: vllm"),
        (["engine.kind=vllm", "engine.urls=['127.0.0.1:8000']"], "is not like http://127.0.0.1"),
        (["engine.kind=vllm", "engine.urls=[http://a/v1]"], "'http://a/v1' is not like"),
        (["engine.kind=vllm", "train.method=full"], "train.method full is not supported"),
        (["train.importance_clip=0.5"], "train.importance_clip"),
    ],
)
def test_wrong_settings_are_refused(overrides: list[str], message: str, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=overrides)
    assert message in str(caught.value)
