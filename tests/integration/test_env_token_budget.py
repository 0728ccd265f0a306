"""The budget in tokens over one session: `reset`, `budget_left()`, and the score of its end."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from env.models import FrameTurn, RLMAction, RLMObservation
from env.problems.settings import SyntheticSettings
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


def test_a_client_may_lower_its_budget_and_not_raise_it(limited: RLMEnvironment) -> None:
    lower = limited.reset(seed=0, tree_tokens=200)
    assert said(lower).endswith("\nbudget: 200 tokens")
    assert step(limited, "print(1)", tokens=201).frames[0].stop_reason == "overspent"
    limited.reset(seed=0)
    for wanted, words in (
        (LIMIT + 1, f"above env.limits.tree_tokens: at most {LIMIT} here"),
        (0, "tree_tokens must be a whole number, at least 1"),
        (True, "tree_tokens must be"),
        ("many", "tree_tokens must be"),
        (20, r"too small for one turn: .* Raise env.limits.tree_tokens, or"),
    ):
        refused = limited.reset(seed=0, tree_tokens=wanted)  # type: ignore[arg-type]
        assert refused.refused is not None
        assert re.search(words, refused.refused)
    # The episode before goes on.
    assert said(step(limited, f"print(budget_left() < {LIMIT})")) == "True"


def test_a_server_without_a_limit_plays_the_clients_budget_for_one_episode(
    free: RLMEnvironment,
) -> None:
    assert "budget" not in said(free.reset(seed=0))
    assert float(said(step(free, "print(budget_left())", tokens=10**6))) == math.inf
    assert said(free.reset(seed=0, tree_tokens=300)).endswith("budget: 300 tokens")
    assert step(free, "print(1)", tokens=301).frames[0].stop_reason == "overspent"
    assert "budget" not in said(free.reset(seed=0))
