"""The real environment plays demonstrations as they were made, word for word."""

from __future__ import annotations

from random import Random

import pytest

from agent.nano.demonstrations import demonstrate
from agent.nano.settings import MixtureSettings
from agent.nano.slips import with_slip
from agent.policies.base import TurnReply
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

MIXTURE = MixtureSettings()


class Replay:
    """Writes what the trees wrote, and remembers what it read."""

    def __init__(self, trees):
        self.trees = trees
        self.talks = {}

    def act(self, requests):
        replies = []
        for request in requests:
            episode, frame = request.key
            talk = self.talks.setdefault(request.key, [])
            talk += [message.model_dump() for message in request.messages]
            conversation = self.trees[episode].conversations[frame]
            written = [m["content"] for m in conversation if m["role"] == "assistant"]
            text = written[sum(m["role"] == "assistant" for m in talk)]
            talk.append({"role": "assistant", "content": text})
            replies.append(TurnReply(text=text))
        return replies

    def release(self, keys):
        pass


def test_the_environment_plays_the_same_trees(server_url, server_problems):
    ids = server_problems.ids("train")
    trees = list(demonstrate([server_problems.get(i) for i in ids], 60, MIXTURE, seed=2))
    replay = Replay(trees)
    specs = [EpisodeSpec(problem_id=tree.problem_id) for tree in trees]
    records = play(replay, server_url, specs, sessions=16)
    for number, (tree, record) in enumerate(zip(trees, records, strict=True)):
        assert record.void is None
        played = [replay.talks[number, frame] for frame in sorted(record.frames)]
        assert played == tree.conversations
        assert record.metrics is not None
        assert record.metrics.f1 == pytest.approx(tree.f1, abs=0.02), tree


def test_roots_without_children_play_the_same_on_the_environment(server_url, server_problems):
    ids = server_problems.ids("train")
    mixture = MIXTURE.model_copy(update={"alone": 1.0})
    trees = list(demonstrate([server_problems.get(i) for i in ids], 30, mixture, seed=2))
    specs = [EpisodeSpec(problem_id=tree.problem_id) for tree in trees]
    records = play(Replay(trees), server_url, specs, sessions=16)
    assert {tree.root.alone for tree in trees} == {"other", "none", "one", "whole"}
    for tree, record in zip(trees, records, strict=True):
        assert len(record.frames) == 1
        assert record.metrics is not None
        assert record.metrics.f1 == pytest.approx(tree.f1, abs=0.02), tree


class ReplayRoots:
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


def test_the_environment_answers_a_slip_in_the_very_words(server_url, server_problems):
    problems = [server_problems.get(i) for i in server_problems.ids("train")]
    rng = Random(5)
    trees = demonstrate(problems, 60, MIXTURE, seed=3)
    slipped = [(tree.problem_id, *with_slip(tree.conversations[0], rng)) for tree in trees]
    cases = [case for case in slipped if case[2] is not None]
    assert len(cases) > 50
    replay = ReplayRoots([talk for _, talk, _ in cases])
    specs = [EpisodeSpec(problem_id=problem_id) for problem_id, _, _ in cases]
    records = play(replay, server_url, specs, sessions=16)
    for number, (record, (_, talk, at)) in enumerate(zip(records, cases, strict=True)):
        wanted = [m["content"] for m in talk if m["role"] == "user"]
        assert replay.read[number] == wanted
        assert record.counters.errors == 1
        assert talk[at + 1]["content"].startswith("error: ")
        assert record.root.stop_reason == "final"
