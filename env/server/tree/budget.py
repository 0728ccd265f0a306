"""The budget of a tree in tokens: all that its frames read and write, each token once.

A frame reads its first messages when it opens, and an observation when its cell has ended. Its
context, variables and answer cost nothing until they are printed or written into a prompt.

The server counts, because it knows every text. It does not know the policy's tokenizer, so it
counts bytes: of characters alone, scripts with dense characters would buy more text. A client that
knows the tokenizer may claim more tokens for a turn, as the rollout engine does. A claim only
raises the count, so a false one gains nothing over making none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from env.models import FrameTurn, Message

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 that count as one token, about as many as in English text and in Python."""
TURN_TOKENS = 16
"""Tokens that a frame needs besides its first messages: for the shortest turn that answers."""


def tokens_of(text: str) -> int:
    """Tokens of a text by the server's own count, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def needed(messages: Iterable[Message]) -> int:
    """Tokens that a frame with these first messages needs for one turn."""
    return sum(tokens_of(message.content) for message in messages) + TURN_TOKENS


class TokenBudget:
    """Tokens that the frames of one tree have read and written.

    Args:
        limit: most tokens of the tree; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.spent = 0
        self.counted = 0
        """`spent` without what claims add: the same for every tokenizer."""
        self._unread: Counter[int] = Counter()
        """Frame -> tokens of its messages since its last turn; `spent` contains them."""

    @property
    def left(self) -> int | None:
        """Tokens that are left, at least 0; None for no limit."""
        return None if self._limit is None else max(0, self._limit - self.spent)

    @property
    def overspent(self) -> bool:
        """Whether the tree has taken more than its limit."""
        return self._limit is not None and self.spent > self._limit

    def lacks(self, messages: Iterable[Message]) -> str | None:
        """Reason why no frame can open with these messages; None if one can."""
        if self.left is None or (tokens := needed(messages)) <= self.left:
            return None
        return f"this needs {tokens} tokens of the budget, and {self.left} are left"

    def read(self, frame: int, messages: Iterable[Message]) -> None:
        """Count messages that a frame reads before its next turn."""
        tokens = sum(tokens_of(message.content) for message in messages)
        self._unread[frame] += tokens
        self.spent += tokens
        self.counted += tokens

    def write(self, turn: FrameTurn) -> None:
        """Count a turn. A claim counts where it is above what was read and written for it."""
        read, written = self._unread.pop(turn.frame, 0), tokens_of(turn.text)
        self.spent += max(written, turn.tokens - read)
        self.counted += written
