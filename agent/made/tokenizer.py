"""The made tokenizer: byte-level BPE with Qwen's special tokens and chat template.

A model of this size can only look up what has one token wherever it is. So numbers, fields and the
benchmarks of the lexicon are never merged with the text around them. Methods have two tokens, as in
nano.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
_SYLLABLE = r"[A-Z][a-z]{2}(?=[a-z]{3}(?![A-Za-z]))|(?<=[A-Z][a-z]{2})[a-z]{3}(?![A-Za-z])"
_WORD = rf"[A-Z]?(?! ?{_FIELD}) ?[a-z_]+ ?|[A-Z]+"
_PATTERN = rf"(?<![a-z]){_FIELD}|{_SYLLABLE}|{_WORD}|[0-9]{{1,2}}|\n|[^A-Za-z0-9_\n]+\n?"


def build_tokenizer(texts: Iterable[str], whole: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer.

    Args:
        texts: texts that the model reads and writes; all names and numbers are added.
        whole: names that get one token each, after all other entries.
    """
    import trl
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=20,
        show_progress=False,
    )
    # Repetition merges each syllable, number and field before any rarer word.
    repeated = [" ".join([*names.NAMES, *map(str, NUMBERS), *FIELDS])] * 60
    repeated += [f"{role}\n" for role in ("system", "user", "assistant")] * 60
    tokenizer.train_from_iterator([*texts, *repeated], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / TEMPLATE).read_text(
        encoding="utf-8"
    )
    fast.add_tokens(list(whole))
    return fast
