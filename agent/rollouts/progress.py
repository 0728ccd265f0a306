"""Events of an episode in progress, for people who watch its tree grow. Plain JSON objects.

    {"event": "frame", "frame": 1, "parent": 0, "kind": "rlm", "depth": 1, "question": "..."}
    {"event": "turn", "frame": 1, "turn": 0, "text": "...", "observation": "..."}
    {"event": "end", "frame": 1, "stop_reason": "final"}

`parent` is null for the root. A lost episode leaves agents without `end`. `observation` is the
text that the agent read before it wrote `text`: the output of its turn before, and nothing in its
first turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.rollouts.trajectory import TurnRecord
from env.models import FrameView
from env.prompts import cut

Event = dict[str, Any]
Watch = Callable[[int, Event], None]
"""Receives the index of an episode's spec, and the event."""

SHOWN = 2000
"""Characters of a question, of a turn's text and of its observation."""


def frame_event(view: FrameView) -> Event:
    """An agent begins."""
    prompt = view.messages[-1].content if view.messages else ""
    if view.kind != "llm":  # the environment adds lines about the context and the budget
        prompt = prompt.rpartition("\ncontext: ")[0]
    return {
        "event": "frame",
        "frame": view.frame,
        "parent": view.parent,
        "kind": view.kind,
        "depth": view.depth,
        "question": cut(prompt, SHOWN),
    }


def turn_event(frame: int, turn: int, record: TurnRecord) -> Event:
    """An agent wrote a turn."""
    return {
        "event": "turn",
        "frame": frame,
        "turn": turn,
        "text": cut(record.text, SHOWN),
        "observation": cut(record.observation, SHOWN) if turn else "",
    }


def end_event(view: FrameView) -> Event:
    """An agent ended."""
    return {"event": "end", "frame": view.frame, "stop_reason": view.stop_reason}
