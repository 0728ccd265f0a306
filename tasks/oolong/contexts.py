"""Contexts of the benchmark: messages with date, user and topic, drawn from a seed.

Any reader knows the topic of a message, and no text names it. `labels=True` prints it beside each
message, so that code can read it. Users, months and topics vary together: a user or a month with
many messages of one topic does not have more messages than others.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

CHARS_PER_TOKEN = 4
"""Characters that count as one token, about as many as in English text."""
YEAR = 2031
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
USERS = ("ash", "birch", "cedar", "elm", "hazel", "larch", "maple", "rowan")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SPREAD = 0.5
"""Standard deviation of the logarithm of each weight of a topic."""
_SLOT = re.compile(r"\{\w+\}")
_FILE = Path(__file__).with_name("messages.toml")


@dataclass(frozen=True)
class ChatLine:
    """One message."""

    month: str
    day: int
    user: str
    topic: str
    text: str

    def shown(self, labels: bool) -> str:
        """The message as a line of a context."""
        date = f"{YEAR}-{MONTHS.index(self.month) + 1:02}-{self.day:02}"
        label = f" | {self.topic}" if labels else ""
        return f"{date} | {self.user}{label} | {self.text}"


@cache
def world() -> Mapping[str, Any]:
    """Content of messages.toml."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def topics() -> tuple[str, ...]:
    """Names of the topics."""
    return tuple(world()["topics"])


@cache
def fragments() -> Mapping[str, str]:
    """Topic of each message by its longest part without a slot."""
    return {
        max(_SLOT.split(message), key=len): topic
        for topic, about in world()["topics"].items()
        for message in about["messages"]
    }


@cache
def topic_of(text: str) -> str:
    """Topic of a message: the knowledge of a perfect reader.

    Raises:
        ValueError: the text is not a message of this world.
    """
    for fragment, topic in fragments().items():
        if fragment in text:
            return topic
    raise ValueError(f"{text!r} is not a message of the benchmark")


def draw(rng: Random, tokens: int) -> list[ChatLine]:
    """Messages of one context, which fills `tokens` with labels and nearly does without.

    Args:
        rng: source of all draws.
        tokens: length of the context, each of `CHARS_PER_TOKEN` characters.
    """
    names = topics()
    overall = _weights(rng, names)
    by_user = {user: _weights(rng, names) for user in USERS}
    by_month = {month: _weights(rng, names) for month in MONTHS}
    lines: list[ChatLine] = []
    size = 0
    while True:
        user, month = rng.choice(USERS), rng.choice(MONTHS)
        weights = [overall[t] * by_user[user][t] * by_month[month][t] for t in names]
        topic = rng.choices(names, weights)[0]
        line = ChatLine(month, rng.randint(1, 28), user, topic, _text(rng, topic))
        size += len(line.shown(labels=True)) + 1
        if size > tokens * CHARS_PER_TOKEN:
            return lines
        lines.append(line)


def shown(lines: Sequence[ChatLine], labels: bool) -> str:
    """Text of a context."""
    return "\n".join(line.shown(labels) for line in lines)


def _weights(rng: Random, names: Sequence[str]) -> dict[str, float]:
    return {name: math.exp(rng.gauss(0.0, _SPREAD)) for name in names}


def _text(rng: Random, topic: str) -> str:
    known = world()
    parts = [rng.choice(known["openings"]), rng.choice(known["topics"][topic]["messages"])]
    parts.append(rng.choice(known["closings"]))
    values = {"people": "{who}", "places": "{place}"}
    text = "".join(parts)
    for key, slot in values.items():
        while slot in text:
            text = text.replace(slot, rng.choice(known[key]), 1)
    while "{day}" in text:
        text = text.replace("{day}", rng.choice(_DAYS), 1)
    return text.replace("{n}", str(rng.randint(4, 40)))
