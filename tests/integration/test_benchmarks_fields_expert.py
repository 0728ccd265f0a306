"""The expert of the world `fields` on a real server: its readers answer everything, at par."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from benchmarks.exploits.fields_cheats import SPENT
from benchmarks.exploits.fields_expert import fields_expert
from env import prompts
from env.client import Sessions
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from env.server.tree.budget import TURN_TOKENS, needed
from rewards.components import par_of_candidates
from tasks.config.params import Params

LEVELS = ("easy", "medium", "hard")


@pytest.fixture(scope="module")
def problems(server_problems: ProblemStore) -> list[Problem]:
    """One of each number of papers."""
    return [server_problems.get(server_problems.ids("test", level)[0]) for level in LEVELS]


@pytest.fixture(scope="module")
def sessions(server_url: str) -> Iterator[Sessions]:
    with Sessions(server_url, 3) as sessions:
        yield sessions


def tokens(params: Params, problem: Problem, episode: Trajectory) -> int:
    """Tokens of the tree beyond the root's first messages."""
    first = prompts.root_messages(params.env, problem.question, len(problem.papers))
    return episode.counters.tokens - (needed(first) - TURN_TOKENS)


@pytest.mark.parametrize("ask", ["llm_query", "rlm_query"])
def test_readers_of_four_sentences_find_all_gold_at_par(
    server_params: Params, sessions: Sessions, problems: list[Problem], ask: str
) -> None:
    specs = [EpisodeSpec(problem.problem_id, seed=0) for problem in problems]
    episodes = play(fields_expert(ask=ask), sessions, specs, sessions=3)  # type: ignore[arg-type]
    assert [episode.void for episode in episodes] == [None] * len(LEVELS)
    for problem, episode in zip(problems, episodes, strict=True):
        assert episode.metrics is not None
        assert (episode.metrics.f1, episode.metrics.exact_match) == (1.0, True)
        readers = -(-len(problem.candidates) // 4)
        assert len(episode.frames) == 1 + readers
        assert episode.components["process_quality"] == 1.0
        if ask == "llm_query":  # the expert's own way
            par = par_of_candidates(len(problem.candidates))
            assert tokens(server_params, problem, episode) == pytest.approx(par, rel=0.05)
            assert episode.components["efficiency"] > 0.97


def test_one_sentence_a_call_keeps_half_of_the_efficiency_and_six_readings_none(
    sessions: Sessions, problems: list[Problem]
) -> None:
    specs = [EpisodeSpec(problem.problem_id, seed=0) for problem in problems]
    for name, least, most in (
        ("one sentence a call", 0.5, 0.99),
        ("every sentence read twice", 0.4, 0.9),
        ("every sentence read six times", 0.0, 0.2),
        ("long thoughts", 0.0, 0.85),
    ):
        for one in play(SPENT[name](), sessions, specs, sessions=3):
            assert one.components["primary_objective"] == 1.0
            assert least <= one.components["efficiency"] <= most
