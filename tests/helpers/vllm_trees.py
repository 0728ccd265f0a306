"""A tiny chat model, and requests for turns of its frames."""

from __future__ import annotations

from pathlib import Path

import torch

from agent.nano.settings import NanoModelSettings, NanoSettings
from agent.nano.warmstart import save
from agent.policies.base import TurnRequest
from env.models import Message
from helpers.untaught import untaught


def save_base(folder: Path) -> Path:
    """An untaught nano model, some of whose turns end before the limit."""
    small = NanoModelSettings(hidden=64, layers=2, heads=2, mlp=64)
    taught = untaught(NanoSettings(model=small))
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
