"""Tokens of common chat templates. No text that the policy reads may fake a turn with one.

A policy of transformers also knows the tokens of its own tokenizer. For a model behind an
endpoint, this table is the only defence. Papers of the data are split when they are prepared, so
that gold, the REPL's `context` and what the policy reads agree.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

_BAR = r"[|\uff5c]"
_AFTER = {  # patterns of what follows a token's first character
    "<": (
        rf"{_BAR}[^|\uff5c<>\n]{{1,40}}{_BAR}>",  # ChatML, Llama 3, Phi, GLM; DeepSeek: wide bars
        r"\|[a-z_]{1,40}>|[a-z_]{1,40}\|>",  # Gemma 4
        r"(?:start|end)_of_(?:turn|image)>|image_soft_token>|(?:bos|eos|pad|unk|mask)>",  # Gemma
        r"/?s>|</?SYS>>",  # Llama 2
        r"[se]op>",  # GLM
        r"/?(?:think|tools?|tool_(?:call|response))>",  # Qwen
        r"(?:image|video|audio)>",  # LLaVA, LFM
    ),
    "[": (
        r"/?(?:INST|SYSTEM_PROMPT|THINK|AVAILABLE_TOOLS|TOOL_(?:CALLS|CONTENT|RESULTS))\]",
        r"IMG(?:_BREAK|_END)?\]",  # Mistral, as the line above
        r"[gs]MASK\]",  # GLM
    ),
}
_TABLE = {re.escape(first): "|".join(rest) for first, rest in _AFTER.items()}
TOKEN = re.compile("|".join(f"{first}(?:{rest})" for first, rest in _TABLE.items()))
_START = re.compile("|".join([f"{f}(?={rest})" for f, rest in _TABLE.items()] + [f"<(?={_BAR})"]))


def without_thought(text: str) -> str:
    """What a model writes after its thought; the text itself if it has none."""
    return text.rpartition("</think>")[2]


def without_chat_tokens(text: str) -> str:
    """The text without tokens; it never becomes longer.

    If removing one token creates another, a line break replaces it: no token contains one.
    """
    return TOKEN.sub("\n", TOKEN.sub("", text))


def split_chat_tokens(text: str) -> str:
    """The text with a space after the first character of each token."""
    return _START.sub(lambda match: f"{match[0]} ", text)


def split_span(text: str, start: int, end: int) -> tuple[int, int]:
    """[start, end) of `split_chat_tokens(text)` for a non-empty [start, end) of the text."""
    spaces = [match.end() for match in _START.finditer(text)]
    return start + bisect_right(spaces, start), end + bisect_left(spaces, end)
