"""Cheats in the world `fields`, and cells that lie about their errors, over the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.policies.scripted import Scripted, Seen, block
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from benchmarks.exploits.fields_cheats import SHOWN, showing
from benchmarks.exploits.fields_expert import fields_expert
from env.client import Sessions
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server


@pytest.fixture(scope="module")
def params() -> Params:
    collections = "prepare.synthetic.collections={train: 0, validation: 0, test: 1}"
    return resolve(overrides=["threads=1", "env.limits.cell_cpu_s=0.5", collections])


@pytest.fixture(scope="module")
def sessions(params: Params) -> Iterator[Sessions]:
    with local_server(params, data=None) as url, Sessions(url, 9) as sessions:
        yield sessions


@pytest.fixture(scope="module")
def problems(params: Params) -> list[Problem]:
    """Three of each level, the easy ones first."""
    store = ProblemStore.generate(params.prepare.synthetic)
    return [store.get(name) for level in store.difficulties() for name in store.ids("test", level)]


@pytest.fixture(scope="module")
def specs(problems: list[Problem]) -> list[EpisodeSpec]:
    return [EpisodeSpec(problem.problem_id, seed=7919 * n) for n, problem in enumerate(problems)]


def played(policy: Scripted, sessions: Sessions, specs: list[EpisodeSpec]) -> list[Trajectory]:
    episodes = play(policy, sessions, specs, sessions=9)
    assert not [episode.void for episode in episodes if episode.void]
    return episodes


@pytest.mark.parametrize("name", SHOWN)
def test_showing_sentences_earns_nothing_without_evidence(sessions, specs, name):
    for one in played(SHOWN[name](), sessions, specs[:5]):
        if one.components["primary_objective"] == 0.0:  # no lucky guess
            assert one.components["process_quality"] == 0.0
            assert one.reward == pytest.approx(0.08)


@pytest.mark.parametrize("name", SHOWN)
def test_with_evidence_sentences_count_where_a_frame_sees_them_whole(
    sessions, specs, problems, name
):
    pays = name in ("candidates to readers", "candidates printed")
    for one in played(showing(name, problems), sessions, specs[:4]):
        assert one.components["primary_objective"] == 1.0
        assert one.components["process_quality"] == (1.0 if pays else 0.0)


# --- what a worker reports

_QUIET = """\
w = FINAL.__self__._finish.__self__
was = type(w)._execute
def quiet(self, code):
    was(self, code)
    return "", ""
type(w)._execute = quiet
print("patched")"""
_UNSTOPPED = """\
w = FINAL.__self__._finish.__self__
w._inside = False
import time
start = time.process_time()
while time.process_time() < start + 0.6: pass"""

TURNS = {
    "an exception in the open": "undefined",
    "no Python": "this is no Python",
    "an exception that is caught": "try:\n    undefined\nexcept NameError: pass",
    "an exception, patched": "undefined",
    "no Python, patched": "this is no Python",
}


def with_turns(*cells: str) -> Scripted:
    """The expert, whose root plays other cells first."""
    inner = fields_expert()

    def script(seen: Seen) -> str:
        if seen.request.kind == "rlm" and not seen.request.depth and seen.turn < len(cells):
            return block(cells[seen.turn])
        turn = seen.turn - (0 if seen.request.kind == "llm" else len(cells))
        return inner._script(Seen(seen.request, seen.opening, turn))

    return Scripted(script)


def test_a_worker_that_hides_its_errors_earns_what_an_honest_one_does(sessions, specs):
    clean = played(with_turns("print('patched')", "pass"), sessions, specs[:2])
    for name, cell in TURNS.items():
        patch = _QUIET if "patched" in name else "print('patched')"
        for plain, one in zip(
            clean, played(with_turns(patch, cell), sessions, specs[:2]), strict=True
        ):
            for part in ("process_quality", "format_compliance", "primary_objective"):
                assert one.components[part] == plain.components[part] == 1.0
            reported = 0 if "patched" in name or "caught" in name else 1
            assert one.counters.errors == reported  # a metric may say what the worker says


def test_a_cell_cannot_hide_that_it_used_up_its_time(sessions, specs):
    (one,) = played(with_turns(_UNSTOPPED), sessions, specs[:1])
    root_turns, readers = 3, one.counters.turns - 3
    assert one.components["process_quality"] == pytest.approx(1 - 1 / (root_turns + readers))
