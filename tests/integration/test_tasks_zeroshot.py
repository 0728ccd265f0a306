"""Zero-shot episodes: which model plays them, and what they say about demonstrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.changed import changed
from helpers.problem_files import write_problems
from helpers.recorder import Recorder

from agent.policies.scripted import Scripted, oracle
from env.problems.store import ProblemStore
from tasks import paths, zeroshot
from tasks.config.params import Params
from tasks.registry import warm_start

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it


@pytest.fixture
def params(served_folder: Path, server_problems: ProblemStore, server_params: Params) -> Params:
    """Settings of a small nano; training problems are data of the working folder."""
    problems = map(server_problems.get, server_problems.ids("train"))
    write_problems("data/problems/train.parquet", problems)
    return server_params


def played_by(policy: Scripted, monkeypatch: pytest.MonkeyPatch, params: Params) -> dict[str, Any]:
    monkeypatch.setattr("agent.policies.hf_policy.TransformersPolicy", lambda *_: policy)
    zeroshot.run(params, Recorder())  # type: ignore[arg-type]
    report: dict[str, Any] = json.loads(paths.ZERO_SHOT.read_text())
    return report


def test_a_nano_of_random_weights_plays_ten_episodes_and_earns_nothing(params: Params) -> None:
    run = Recorder()
    zeroshot.run(params, run)  # type: ignore[arg-type]
    report = json.loads(paths.ZERO_SHOT.read_text())
    assert (report["level"], report["episodes"], report["earned"]) == ("easy", 10, 0)
    assert report["advice"] == (
        "demonstrations are needed: 0 of 10 zero-shot episodes earn anything at easy"
    )
    assert sum(report["stop_reasons"].values()) == 10
    assert run.metrics["zeroshot/error_rate"] == report["error_rate"] > 0
    assert run.metrics["zeroshot/primary_objective"] == run.metrics["zeroshot/f1"] == 0
    assert run.tags["zero_shot"] == report["advice"]
    assert [path.name for path in run.artifacts] == ["zeroshot.json"]
    assert not paths.BASE.exists()


def test_a_bare_model_that_earns_may_need_no_demonstrations(
    params: Params, server_problems: ProblemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = oracle(server_problems.get(name) for name in server_problems.ids())
    report = played_by(policy, monkeypatch, params)
    assert report["earned"] == 10
    assert report["advice"].startswith("the bare model earns already, so demonstrations may be")


def test_the_model_of_demonstrations_is_played_without_them_and_leaves_no_files(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Path]] = []

    def write(params: Params, run: object, folder: Path) -> str:
        folder.mkdir()
        return "tiny"

    def load(folder: Path) -> tuple[str, str]:
        seen.append(list(folder.iterdir()))
        return "model", "tokenizer"

    (paths.BASE.with_name(".bare") / "of a run that was killed").mkdir(parents=True)
    monkeypatch.setattr(warm_start, "write_source", write)
    monkeypatch.setattr("agent.policies.hf_policy.load_model", load)
    sft = changed(params, model={"source": "tiny"}, warmstart={"kind": "sft"})
    report = played_by(Scripted(lambda seen: "I do not know."), monkeypatch, sft)
    assert (report["kind"], report["episodes"]) == ("sft", 10)
    assert seen == [[]]  # no adapter
    assert list(paths.BASE.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["none", "champion"])
def test_without_demonstrations_nothing_is_played(
    kind: str, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeroshot, "play_bare", lambda *_: pytest.fail("it played"))
    zeroshot.run(changed(params, warmstart={"kind": kind}), Recorder())  # type: ignore[arg-type]
    report = json.loads(paths.ZERO_SHOT.read_text())
    assert report == {"kind": kind, "played": False, "advice": zeroshot.NOT_PLAYED[kind]}
