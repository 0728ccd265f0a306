"""The one-page loop runs: environment, rollouts, rows and a real optimizer step."""

import pytest
from helpers.untaught import untaught

from agent.nano.sizes import NanoModelSettings, NanoSettings
from agent.settings import GenerationSettings, TrainSettings
from env.problems.fields import SyntheticSettings, generate

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.xdist_group("stages"),  # which import TRL once
]


def test_the_loop_plays_groups_of_trees_and_says_each_steps_reward(capfd, monkeypatch):
    from examples import grpo_loop

    problems = [p for p in generate(SyntheticSettings()) if p.split == "train"]
    base = untaught(NanoSettings(model=NanoModelSettings(hidden=64, layers=2, heads=2)))
    settings = TrainSettings(steps=2, problems_per_step=2, group_size=2)
    generation = GenerationSettings(max_turn_tokens=8, max_frame_tokens=256)
    played = []
    plain = grpo_loop.play

    def recorded(*args, **kwargs):
        played.append(plain(*args, **kwargs))
        for number, tree in enumerate(played[-1]):  # an untaught model earns nothing to learn from
            tree.reward = number / 4
        return played[-1]

    monkeypatch.setattr(grpo_loop, "play", recorded)
    monkeypatch.setattr(grpo_loop, "teach", lambda *args: args[2](50, {}) or base)
    assert grpo_loop.teach_base() == (base.model, base.tokenizer)
    rewards = grpo_loop.train(base.model, base.tokenizer, settings, generation, problems)
    assert rewards == [0.375, 0.375]
    assert [len(trees) for trees in played] == [4, 4]
    assert all(tree.void is None for trees in played for tree in trees)
    # The server has the same problems, and each group is one problem.
    assert len({tree.problem_id for tree in played[0]}) == 2
    said = capfd.readouterr().out
    assert "step 50 of 300\n" in said  # while the base is taught
    assert "step 2: mean reward 0.375" in said
    assert "root     advantage" in said
