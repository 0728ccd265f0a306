"""The nano tokenizer: byte-level BPE in which a name has the same two tokens everywhere.

The model can only copy a name whose tokens are the same in question, code and paper. So the
pre-tokenizer cuts every name into its two syllables, which are never merged with other text.
Lower-case words include the spaces around them. The vocabulary is trained on the texts of the small
world; other text is encoded in smaller pieces, down to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agent.errors import PolicyError
from env.problems import names

Conversation = list[dict[str, str]]
"""Messages, each with `role` and `content`."""

PAD, SYSTEM, USER, ASSISTANT, END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Each message is between its role's token and the end token, so a conversation only grows."""

SYLLABLE = r"[A-Z][a-z]{2}(?=[a-z]{3}(?![A-Za-z]))|(?<=[A-Z][a-z]{2})[a-z]{3}(?![A-Za-z])"
"""Pattern of the two halves of a name."""
_WORD = r"[A-Z]?[a-z_]+ ?| ?[a-z_]+ ?|[A-Z]+"
_PATTERN = rf"{SYLLABLE}|{_WORD}|[0-9]|[^A-Za-z0-9_]+"


def render(messages: Iterable[dict[str, str]], generate: bool = False) -> str:
    """Text of a conversation, as the chat template renders it."""
    text = "".join(f"<|{m['role']}|>{m['content']}{END}" for m in messages)
    return text + ASSISTANT if generate else text


def build_tokenizer(
    texts: Iterable[str], vocab: int, whole: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train the tokenizer.

    Args:
        texts: texts that the model reads and writes; every syllable is added.
        vocab: most entries, with special tokens and without `whole`.
        whole: names that get one token each, after all other entries.

    Raises:
        PolicyError: `vocab` is too small to give each name two tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, SYSTEM, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=20,
        show_progress=False,
    )
    # Repetition merges each syllable before any rarer word.
    tokenizer.train_from_iterator([*texts, *[" ".join(names.NAMES)] * 20], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[SYSTEM, USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )
    encoded = fast(list(names.NAMES), add_special_tokens=False)["input_ids"]
    long = [name for name, ids in zip(names.NAMES, encoded, strict=True) if len(ids) != 2]
    if long:
        raise PolicyError(
            f"{len(long)} names ({', '.join(long[:3])}...) do not have two tokens. "
            "Raise NanoModelSettings.vocab."
        )
    fast.add_tokens(list(whole))
    return fast


def syllable_ids(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Token ids of the first and second syllables, in the order of `names`."""
    vocabulary = tokenizer.get_vocab()
    first = [vocabulary[syllable.capitalize()] for syllable in names.FIRST]
    return first, [vocabulary[syllable] for syllable in names.SECOND]
