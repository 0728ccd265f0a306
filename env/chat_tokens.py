"""Tokens of common chat templates. No text that the policy reads may fake a turn with one.

A policy of transformers also knows the tokens of its own tokenizer. For a model behind an
endpoint, this table is the only defence.
"""

from __future__ import annotations

import re

_BAR = r"[|\uff5c]"
_AFTER = {  # patterns of what follows a token's first character
    "<": (
        rf"{_BAR}[^|\uff5c<>\n]{{1,40}}{_BAR}>",  # ChatML, Llama 3, Phi, GLM; DeepSeek: wide bars
        r"\|[a-z_]{1,40}>|[a-z_]{1,40}\|>",  # Gemma 4
        r"(?:start|end)_of_turn>|(?:bos|eos|pad)>",  # Gemma
        r"/?s>|</?SYS>>",  # Llama 2
        r"[se]op>",  # GLM
        r"/?think>",
    ),
    "[": (
        r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|CONTENT|RESULTS))\]",  # Mistral
        r"[gs]MASK\]",  # GLM
    ),
}
_TABLE = {re.escape(first): "|".join(rest) for first, rest in _AFTER.items()}
TOKEN = re.compile("|".join(f"{first}(?:{rest})" for first, rest in _TABLE.items()))
_START = re.compile("|".join([f"{f}(?={rest})" for f, rest in _TABLE.items()] + [f"<(?={_BAR})"]))


def without_chat_tokens(text: str) -> str:
    """The text without tokens; it never becomes longer.

    If removing one token creates another, a line break replaces it: no token contains one.
    """
    return TOKEN.sub("\n", TOKEN.sub("", text))


def split_chat_tokens(text: str) -> str:
    """The text with a space after the first character of each token."""
    return _START.sub(lambda match: f"{match[0]} ", text)
