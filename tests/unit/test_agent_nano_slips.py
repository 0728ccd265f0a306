"""Broken turns are not valid Python, and the environment's error is the one in the example."""

from __future__ import annotations

from random import Random

from agent.nano.plans import ReadingTalks, draw_plan
from agent.nano.settings import ReadingMixture
from agent.nano.slips import with_slip

TALKS = ReadingTalks(64)


def conversations(count):
    rng = Random(3)
    plans = [draw_plan(rng, ReadingMixture()) for _ in range(count)]
    return [TALKS.root(rng, plan, "Kesrog", "speech", 4) for plan in plans]


def slipped(count):
    rng = Random(5)
    return [with_slip(talk, rng) for talk in conversations(count)]


def test_the_turn_that_should_have_come_follows_the_broken_one():
    places = []
    for (talk, at), plain in zip(slipped(40), conversations(40), strict=True):
        places.append(at)
        if at is not None:
            assert [*talk[:at], *talk[at + 2 :]] == plain
    assert places.count(None) < 10


def test_slips_are_the_same_for_the_same_seed():
    assert slipped(20) == slipped(20)
