"""An agent without children in benchmarks/recursion has none: every sub-call is refused."""

from __future__ import annotations

import pytest

from agent.policies.scripted import Scripted, Seen, block
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from benchmarks.recursion.arms import ARMS, RECURSIVE_MANY_NAMES
from benchmarks.recursion.measure import held_out
from tasks.config import resolve
from tasks.deployment.local import local_server

CALLS = """\
said = [llm_query("a"), rlm_query("b"), *llm_query_batched(["c", "d"]), *rlm_query_batched(["e"])]
FINAL([len(said), *(one for one in said if not one.startswith("error: "))])"""
TREES = ("recursive", "recursive, budgets", "readers only", RECURSIVE_MANY_NAMES)
ALONE = [arm for arm in ARMS if arm not in TREES]


@pytest.mark.parametrize("arm", ALONE[:2])
def test_every_sub_call_of_a_single_agent_is_refused(arm: str) -> None:
    assert all("env.limits.max_frames=1" in ARMS[one].sets for one in ALONE)
    params, store = held_out(resolve(overrides=list(ARMS[arm].sets)), (2,), 1)

    def script(seen: Seen) -> str:
        return block(CALLS)

    with local_server(params, data=None) as url:
        [episode] = play(Scripted(script), url, [EpisodeSpec(store.ids("test")[0])], sessions=1)
    assert episode.answer == [5]
    assert list(episode.frames) == [0]
