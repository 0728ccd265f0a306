"""Broken turns are not valid Python, and the environment's error is the one in the example."""

from __future__ import annotations

from random import Random

from agent.nano.demonstrations import demonstrate
from agent.nano.settings import MixtureSettings
from agent.nano.slips import with_slip


def slipped(problems, count):
    trees = demonstrate(problems, count, MixtureSettings(), seed=3)
    rng = Random(5)
    return [(tree.problem_id, *with_slip(tree.conversations[0], rng)) for tree in trees]


def test_the_turn_that_should_have_come_follows_the_broken_one(server_problems):
    problems = [server_problems.get(i) for i in server_problems.ids("train")]
    for (_, talk, at), tree in zip(
        slipped(problems, 40), demonstrate(problems, 40, MixtureSettings(), seed=3), strict=True
    ):
        if at is not None:
            assert [*talk[:at], *talk[at + 2 :]] == tree.conversations[0]


def test_slips_are_the_same_for_the_same_seed(server_problems):
    problems = [server_problems.get(i) for i in server_problems.ids("train")]
    assert slipped(problems, 20) == slipped(problems, 20)
