"""The made tokenizer: byte-level BPE with Qwen's special tokens and chat template.

A model of this size can only look up what has one token wherever it is. So numbers, fields and the
benchmarks of the lexicon are never merged with the text around them. Methods have two tokens, as in
nano.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.nano.tokenizer import SYLLABLE, train_bpe
from env.problems import names
from env.problems.lexicon import FIELDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = "qwen3_instruct_2507.jinja"
"""File of TRL with the chat template of Qwen3-Instruct-2507, which keeps earlier turns."""
NUMBERS = range(100)
VOCAB = 768
"""Most entries that are trained, numbers included."""

_FIELD = rf"(?:{'|'.join(FIELDS)})(?![a-z])"
_WORD = rf"[A-Z]?(?! ?{_FIELD}) ?[a-z_]+ ?|[A-Z]+"
_PATTERN = rf"(?<![a-z]){_FIELD}|{SYLLABLE}|{_WORD}|[0-9]{{1,2}}|\n|[^A-Za-z0-9_\n]+\n?"


def build_tokenizer(texts: Iterable[str], whole: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer.

    Args:
        texts: texts that the model reads and writes; all names and numbers are added.
        whole: names that get one token each, after all other entries.
    """
    import trl

    # Repetition merges each syllable, number and field before any rarer word.
    repeated = [" ".join([*names.NAMES, *map(str, NUMBERS), *FIELDS])] * 60
    repeated += [f"{role}\n" for role in ("system", "user", "assistant")] * 60
    fast = train_bpe([*texts, *repeated], _PATTERN, VOCAB, [PAD, START, END], eos=END)
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / TEMPLATE).read_text(
        encoding="utf-8"
    )
    fast.add_tokens(list(whole))
    return fast
