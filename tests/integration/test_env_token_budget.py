"""The budget in tokens over one session: `reset`, `budget_left()`, and the score of its end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from env.models import FrameTurn, RLMAction, RLMObservation
from env.problems.fields import SyntheticSettings
from env.problems.store import ProblemStore
from env.server.environment import RLMEnvironment
from env.server.service import ServerSettings, Service
from env.settings import EnvSettings, LimitSettings

LIMIT = 500


def opened(limit: int | None) -> Iterator[RLMEnvironment]:
    problems = SyntheticSettings(collections={"train": 1, "validation": 1, "test": 1})
    env = EnvSettings(limits=LimitSettings(tree_tokens=limit))
    service = Service(ServerSettings(env=env), ProblemStore.generate(problems))
    environment = RLMEnvironment(lambda: service)
    yield environment
    environment.close()
    service.close()


@pytest.fixture(scope="module")
def limited() -> Iterator[RLMEnvironment]:
    yield from opened(LIMIT)


@pytest.fixture(scope="module")
def free() -> Iterator[RLMEnvironment]:
    yield from opened(None)


def step(environment: RLMEnvironment, code: str, **turn: Any) -> RLMObservation:
    turns = [FrameTurn(frame=0, text=f"```repl\n{code}\n```", **turn)]
    return environment.step(RLMAction(turns=turns))


def said(observation: RLMObservation) -> str:
    return observation.frames[0].messages[-1].content


def test_the_root_is_told_its_budget_and_code_reads_what_is_left(limited: RLMEnvironment) -> None:
    first = limited.reset(seed=0)
    assert said(first).endswith(f"\nbudget: {LIMIT} tokens")
    seen = step(limited, "print(budget_left())", tokens=100)
    assert int(said(seen)) == LIMIT - 100
    assert seen.counters.tokens == 100 + 1  # and the number that it printed
    again = step(limited, "print(budget_left(), SHOW_VARS())")
    assert said(again).endswith("No variables created yet.")


def test_an_overspent_tree_is_scored_and_not_void(limited: RLMEnvironment) -> None:
    limited.reset(seed=0)
    done = step(limited, "print('x' * 1200)\nprint('y')", tokens=LIMIT - 200)
    assert done.done
    assert done.frames[0].stop_reason == "overspent"
    assert (done.reward, done.void, done.answer) == (0.0, None, None)
    assert done.counters.tokens > LIMIT
    assert limited.state.frames[0].stop_reason == "overspent"


def test_without_a_limit_nobody_is_told_of_a_budget(free: RLMEnvironment) -> None:
    assert "budget" not in said(free.reset(seed=0))
    assert float(said(step(free, "print(budget_left())", tokens=10**6))) == math.inf
