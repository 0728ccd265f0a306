"""The same seeds give the same episodes, in whatever batches their turns are written."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from agent.nano.sizes import NanoModelSettings, NanoSettings
from agent.policies.base import TurnReply, TurnRequest
from agent.policies.hf_policy import TransformersPolicy
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.settings import GenerationSettings
from tasks.deployment.local import local_server

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

CODE = [
    "print(sorted(context))",
    "papers = list(context.values()) if isinstance(context, dict) else [context]\n"
    "print(rlm_query_batched(['which?'] * len(papers[:3]), papers[:3]))",
    "import random\nprint(random.random(), {'one', 'two', 'three'}, hash('one'))",
    "print(llm_query('what?'))",
    "print(papers)",
    "FINAL(search(context, 'the'))",
    "FINAL(str(context)[:60])",
]
"""Code of turns: some use values whose order is random, some fail."""


class CodingPolicy(TransformersPolicy):
    """Tokens are the model's; the text is the piece of code that they choose."""

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        for place, reply in super().stream(requests):
            text = f"```repl\n{CODE[crc32(str(reply.sampled_ids).encode()) % len(CODE)]}\n```"
            yield place, replace(reply, text=text, finish="stop")


def without_clocks(tree: Trajectory) -> Trajectory:
    """The record less seconds and log-probabilities."""
    frames = {
        number: replace(frame, turns=[replace(turn, logprobs=[]) for turn in frame.turns])
        for number, frame in tree.frames.items()
    }
    counters = tree.counters.model_copy(update={"env_s": 0.0})
    return replace(tree, seconds=0.0, frames=frames, counters=counters)


def logprobs(trees: list[Trajectory]) -> np.ndarray:
    frames = [frame for tree in trees for frame in tree.frames.values()]
    return np.concatenate([turn.logprobs for frame in frames for turn in frame.turns])


def test_the_order_of_batching_changes_no_episode(one_thread, server_params, server_problems):
    from helpers.untaught import untaught

    base = untaught(NanoSettings(model=NanoModelSettings(hidden=64, layers=2, heads=2, mlp=64)))
    limits = server_params.env.limits.model_copy(update={"max_turns": 3})
    env = server_params.env.model_copy(update={"limits": limits})
    ids = server_problems.ids("train", "easy")
    specs = [EpisodeSpec(ids[i % len(ids)], seed=i) for i in range(7)]

    def episodes(chosen: list[EpisodeSpec], sessions: int, size: int) -> list[Trajectory]:
        generation = GenerationSettings(max_turn_tokens=8, max_frame_tokens=512, batch_frames=size)
        policy = CodingPolicy(base.model.eval(), base.tokenizer, generation)
        return play(policy, url, chosen, sessions=sessions)

    with local_server(server_params.model_copy(update={"env": env}), data=None) as url:
        whole = episodes(specs, sessions=7, size=64)
        small = episodes(specs[3::-1], sessions=3, size=4)[::-1]
        other = episodes([replace(spec, seed=spec.seed + 99) for spec in specs[:2]], 2, 64)
    assert [tree.void for tree in whole] == [None] * 7
    assert [without_clocks(tree) for tree in small] == [without_clocks(tree) for tree in whole[:4]]
    np.testing.assert_allclose(logprobs(small), logprobs(whole[:4]), rtol=0, atol=1e-5)
    # It was put to the test: trees were more than their roots.
    assert sum(len(tree.frames) for tree in whole) > len(whole)
    assert [without_clocks(tree) for tree in other] != [without_clocks(tree) for tree in whole[:2]]
