"""The evidence of the environment's validity: a report that OpenEnv reads, and fails if it must."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openenv.validation import CheckStatus, ValidationReport

from agent.policies import scripted
from agent.policies.base import Policy
from benchmarks.arena import Arena
from benchmarks.exploits import anywhere, evidence
from benchmarks.exploits.fields_expert import careless, fields_expert
from env.client import Sessions
from env.problems.store import ProblemStore
from tasks.config.params import Params
from tasks.gate import GATE


@pytest.fixture(scope="module")
def ring(server_url: str, server_problems: ProblemStore) -> Iterator[Arena]:
    problems = [server_problems.get(id_) for id_ in server_problems.ids("test", "easy")[:2]]
    with Sessions(server_url, 2) as sessions:
        yield Arena(["easy"], problems, sessions)


@pytest.fixture
def makers(ring: Arena) -> dict[str, Callable[[], Policy]]:
    return {
        "oracle": lambda: scripted.oracle(ring.problems),
        "expert": fields_expert,
        "random code": scripted.random_code,
        "no evidence: empty": anywhere.NOTHING["empty"],
        "no evidence: random windows": anywhere.GUESSES["random windows"],
    }


@pytest.mark.parametrize(
    ("earned", "reached", "code"),
    [(3, CheckStatus.PASS, 0), (0, CheckStatus.FAIL, 1), (None, CheckStatus.SKIP, 0)],
)
def test_the_report_is_one_of_openenv_and_follows_the_gate(
    ring: Arena,
    server_params: Params,
    makers: dict[str, Callable[[], Policy]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earned: int | None,
    reached: CheckStatus,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    if earned is not None:
        GATE.parent.mkdir()
        levels = {"easy": {"episodes": 10, "earned": earned}}
        GATE.write_text(json.dumps({"levels": levels, "advice": "warm-start it longer"}))
    assert evidence.write(ring, server_params, makers) == code
    report = ValidationReport.model_validate_json(evidence.REPORT.read_text())
    found = {result.check_id: result for result in report.results}
    assert found.pop("statistical.reward_reachability").status is reached
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(
        (
            *("static.manifest", "runtime.episode_determinism"),
            *("semantic.oracle_max", "semantic.canary_floor"),
        ),
        CheckStatus.PASS,
    )
    assert found["semantic.canary_floor"].measured["bounds"] == {
        "no evidence: empty": 0.0,
        "no evidence: random windows": evidence.GUESS,
    }
    assert report.verdict.value == {0: "fail", 3: "pass", None: "warn"}[earned]


def test_an_expert_that_earns_too_little_is_named(
    ring: Arena, makers: dict[str, Callable[[], Policy]]
) -> None:
    found = evidence.oracle_max(ring, makers | {"expert": careless}, tolerance=0.0)
    assert found.status is CheckStatus.FAIL
    assert [line.partition(":")[0] for line in found.evidence] == ["expert"]


def test_a_cheat_that_earns_is_named(ring: Arena, makers: dict[str, Callable[[], Policy]]) -> None:
    makers["dilution: gold"] = makers["oracle"]
    found = evidence.canary_floor(ring, makers)
    assert found.status is CheckStatus.FAIL
    assert found.evidence == ["dilution: gold: mean reward 1.000, bound 0.25"]


def test_episodes_that_differ_are_counted(ring: Arena) -> None:
    turns = itertools.count()
    drifting = lambda: scripted.Scripted(  # noqa: E731
        lambda seen: scripted.block(f"FINAL([{next(turns)}])")
    )
    found = evidence.determinism(ring, {"expert": drifting})
    assert found.status is CheckStatus.FAIL
    assert found.evidence == ["expert: 2 of 2 differ"]
