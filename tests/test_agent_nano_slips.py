"""Broken turns: they are no Python, and the environment answers them as the teaching says."""

from __future__ import annotations

from random import Random

from agent.nano.demonstrations import demonstrate
from agent.nano.settings import MixtureSettings
from agent.nano.slips import with_slip
from agent.policy import TurnReply
from agent.rollout import EpisodeSpec, play


class Replay:
    """Each root writes the turns of its conversation; children end at once."""

    def __init__(self, talks):
        self.talks = talks
        self.read = {}

    def act(self, requests):
        return [TurnReply(text=self.turn(request)) for request in requests]

    def turn(self, request):
        episode, frame = request.key
        if frame:
            return "```repl\nFINAL([])\n```"
        read = self.read.setdefault(episode, [])
        read.append(request.messages[-1].content)
        written = [m["content"] for m in self.talks[episode] if m["role"] == "assistant"]
        return written[len(read) - 1]

    def release(self, keys):
        pass


def slipped(problems, count):
    trees = demonstrate(problems, count, MixtureSettings(), seed=3)
    rng = Random(5)
    return [(tree.problem_id, *with_slip(tree.conversations[0], rng)) for tree in trees]


def test_the_environment_answers_a_slip_in_the_very_words(server_url, server_problems):
    problems = [server_problems.get(i) for i in server_problems.ids("train")]
    cases = [case for case in slipped(problems, 60) if case[2] is not None]
    assert len(cases) > 50
    replay = Replay([talk for _, talk, _ in cases])
    specs = [EpisodeSpec(problem_id=problem_id) for problem_id, _, _ in cases]
    records = play(replay, server_url, specs, sessions=16)
    for number, (record, (_, talk, at)) in enumerate(zip(records, cases, strict=True)):
        wanted = [m["content"] for m in talk if m["role"] == "user"]
        assert replay.read[number] == wanted
        assert record.counters.errors == 1
        assert talk[at + 1]["content"].startswith("error: ")
        assert record.root.stop_reason == "final"


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
