"""A tiny chat model, and trees of one root that a policy plays without an environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agent.nano.settings import NanoSettings
from agent.nano.warmstart import save
from agent.policies.base import Policy, TurnRequest
from agent.policies.hf_policy import load_model
from agent.rollouts.players import Players
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import TrainSettings
from agent.training import ranks
from env.models import Message
from helpers import tiny_trees
from helpers.untaught import untaught

SETTINGS = TrainSettings.model_validate(
    tiny_trees.SETTINGS.model_dump()
    | {"steps": 3, "micro_batch_tokens": 400, "save_every": 1}
    | {"generation": {"max_turn_tokens": 12, "max_frame_tokens": 128}}
)


def save_base(folder: Path) -> Path:
    """An untaught nano model, some of whose turns end before the limit."""
    small = {"hidden": 64, "layers": 2, "heads": 2, "mlp": 64}
    taught = untaught(NanoSettings.model_validate({"model": small}))
    with torch.no_grad():
        taught.model.get_input_embeddings().weight[taught.tokenizer.eos_token_id] *= 6
    save(taught, folder)
    return folder


def request(episode: int, turn: int, text: str, seed: int, frame: int = 0) -> TurnRequest:
    roles = [("system", "Find it."), ("user", text)][0 if turn == 0 else 1 :]
    return TurnRequest(
        key=(episode, frame),
        messages=[Message(role=role, content=content) for role, content in roles],
        depth=0,
        kind="rlm",
        first=turn == 0,
        seed=seed,
    )


def play_specs(policy: Policy, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
    """Two turns of each root; the reward is the share of even ids."""
    trees = [Trajectory(spec.problem_id, "easy") for spec in specs]
    for tree in trees:
        tree.frames[0] = FrameRecord(0, None, 0, "rlm", [], "final")
    for turn in range(2):
        asked = [
            request(n, turn, f"{spec.problem_id} {turn}", spec.seed + turn)
            for n, spec in enumerate(specs)
        ]
        for tree, reply in zip(trees, policy.act(asked), strict=True):
            tree.frames[0].turns.append(TurnRecord("", **vars(reply)))
    for tree in trees:
        ids = [token for turn in tree.frames[0].turns for token in turn.sampled_ids]
        tree.reward = sum(token % 2 == 0 for token in ids) / len(ids)
    policy.release([(n, 0) for n in range(len(specs))])
    return trees


def make_trainer(
    folder: Path, base: Path, players: Players, settings: TrainSettings = SETTINGS, **options: Any
):
    """A trainer of the base whose episodes `players` plays."""
    model, tokenizer = load_model(base, device="cpu")

    def rollout(live: Any, step: int) -> list[list[Trajectory]]:
        policy = players.policy(live, settings.generation, step - 1)
        specs = [
            EpisodeSpec(f"p{problem}", seed=1000 * step + 100 * problem + 10 * sample)
            for problem in range(2)
            for sample in range(4)
        ]
        played = ranks.play_dealt(lambda dealt: play_specs(policy, dealt), specs)
        return [played[:4], played[4:]]

    return tiny_trees.make_trainer(
        folder, settings, rollout, model=model, tokenizer=tokenizer, **options
    )


def adapter_of(trainer: Any) -> dict[str, torch.Tensor]:
    """The trained weights."""
    named = trainer.live_model.named_parameters()
    return {name: value.detach().clone() for name, value in named if value.requires_grad}
