"""Requests and command lines against the names that vLLM's wheel has (`helpers/vllm_contract`)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from helpers.vllm_contract import contract

from agent.models.model_files import TWIN
from agent.settings import EngineSettings
from agent.vllm.policy import PURE
from agent.vllm.server import ENVIRONMENT, LORA_RANKS, engine_of


def command(folder: Path, rank: int = 16, **config: object) -> list[str]:
    """The words of the command that starts a server for a base with this configuration."""
    (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16"} | config))
    settings = EngineSettings(url="http://127.0.0.1:8123")
    engine = engine_of(settings, rank, 512, folder, "1")
    assert engine is not None
    return shlex.split(engine.command)


def test_every_flag_and_variable_is_one_of_vllm(tmp_path) -> None:
    known = {*contract()["serve"]}
    flags = [text for text in command(tmp_path) if text.startswith("--")]
    assert len(flags) > 10
    assert set(flags) <= known
    others = {"HF_HUB_OFFLINE"}  # of huggingface_hub
    assert ENVIRONMENT.keys() - others <= {*contract()["variables"]}


def test_the_server_listens_on_loopback_and_keeps_the_models_distribution(tmp_path) -> None:
    text = " ".join(command(tmp_path))
    for part in (
        f"VLLM_HOST_IP=127.0.0.1 .venv-vllm/bin/vllm serve {tmp_path} --served-model-name base-1",
        "--host 127.0.0.1 --port 8123 --dtype auto --max-model-len 512",
        "--kv-cache-memory-bytes 8589934592",
        "--logprobs-mode processed_logprobs --generation-config vllm --enable-lora",
    ):
        assert part in text


def test_it_serves_the_weights_that_the_trainer_has(tmp_path) -> None:
    text = " ".join(command(tmp_path, dtype="float32", max_position_embeddings=300))
    assert "--dtype float32 --max-model-len 300" in text
    twin = tmp_path / TWIN
    twin.mkdir()
    (twin / "config.json").write_text('{"dtype": "float16"}')
    assert f"serve {twin} " in " ".join(command(tmp_path, dtype="float32"))


@pytest.mark.parametrize(("rank", "most"), [(1, 1), (2, 8), (16, 16), (17, 32), (256, 256)])
def test_an_adapter_of_any_rank_fits(rank: int, most: int, tmp_path) -> None:
    found = command(tmp_path, rank)
    assert found[found.index("--max-lora-rank") + 1] == str(most)
    assert list(LORA_RANKS) == contract()["lora_ranks"]


def test_every_field_of_a_request_is_one_of_vllm_and_all_defaults_are_replaced() -> None:
    whole = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    whole |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": True}
    assert whole.items() <= PURE.items()
    assert {*PURE} <= {*contract()["completion_request"]}
