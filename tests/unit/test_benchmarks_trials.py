"""The comparison on clinical trials: whose code is a script's, and which results are paired."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from agent.policies.base import FrameKey, TurnReply, TurnRequest
from benchmarks import trials
from env.models import FrameKind

FORM = "Does {drug} help against {pain}?"


class Readers:
    """Model that answers each reader with its number, and nothing else."""

    def __init__(self) -> None:
        self.released: list[FrameKey] = []

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        assert all(request.kind == "llm" for request in requests)
        return [TurnReply(text=str(request.key[1])) for request in requests]

    def release(self, keys: Iterable[FrameKey]) -> None:
        self.released += keys


def request(frame: int, kind: FrameKind) -> TurnRequest:
    return TurnRequest((0, frame), [], depth=0, kind=kind, first=True, seed=0)


def test_a_script_writes_the_code_and_a_model_reads() -> None:
    readers = Readers()
    policy = trials.Planned(trials.BEST_PLAN, FORM, readers)
    replies = policy.act([request(2, "llm"), request(0, "rlm"), request(1, "llm")])
    assert [reply.text for reply in replies[::2]] == ["2", "1"]
    assert '"{outcome} significantly compared p groups"' in replies[1].text
    policy.release([(0, 2)])
    assert readers.released == [(0, 2)]


def row(arm: str, seed: int, f1: Sequence[float], prompts: str) -> dict[str, Any]:
    scores = {"f1": list(f1), "reward": list(f1), "tokens": [1.0] * len(f1)}
    played = {"greedy": scores, "sampled": scores, "latency_s": [1.0], "warmstart_s": 1.0}
    return {"arm": arm, "seed": seed, "prompts": list(prompts), "articles": list(prompts), **played}


def test_arms_are_paired_by_seed_and_prompt() -> None:
    rows = [
        row("GRPO", 0, [0.6, 0.0, 0.8], "abc"),
        row("moves", 0, [0.5, 0.0, 0.5], "abc"),
        row("untrained", 0, [0.1, 0.2], "ac"),
        row("GRPO", 1, [0.8, 0.0, 0.8], "abc"),
    ]
    lines = {line.split(" | ")[0]: line for line in trials.differences(rows).split("\n")}
    assert "| 0.133 (" in lines["| GRPO minus moves"]  # of seed 0 alone
    assert "| 0.600 (" in lines["| GRPO minus untrained"]  # of both seeds, at a and c
    assert "0.550 (" in lines["| GRPO minus untrained"]


@pytest.mark.parametrize("name", list(trials.ARMS))
def test_every_arm_has_valid_settings(name: str) -> None:
    arm = trials.ARMS[name]
    trials.resolve(trials.PROFILE, [*arm.sets, *(arm.grpo or ())])
