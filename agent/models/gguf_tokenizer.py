"""Tokenizers of GGUF files: byte pairs, split as SmolLM's makers split them.

Neighbours: `gguf_source.py` reads and checks the file, `chat_template.py` uses the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.errors import PolicyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPLIT = "smollm"
"""Way to split a text before byte pairs are merged, by its name in `tokenizer.ggml.pre`."""
_CONTROL, _DEFINED = 3, 4
"""Types of special tokens, and of further ones that are never split."""


def build_tokenizer(fields: Mapping[str, Any], context: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a file, with its chat template if it has one.

    Bytes without a token are left out, as llama.cpp leaves them out.

    Args:
        fields: metadata of the file; `tokenizer.ggml.pre` is `SPLIT`.
        context: most tokens of the model.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, control = fields["tokenizer.ggml.tokens"], _typed(fields, _CONTROL)
    merges = [tuple(text.split(" ")) for text in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({text: n for n, text in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    pairs = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pairs])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(tokens[n], normalized=False) for n in control])
    made.add_tokens([AddedToken(tokens[n], normalized=False) for n in _typed(fields, _DEFINED)])
    roles = {role: tokens[n] for role, n in special_ids(fields).items() if n is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        **roles,
        extra_special_tokens=[tokens[n] for n in control if tokens[n] not in roles.values()],
        chat_template=fields.get("tokenizer.chat_template"),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def special_ids(fields: Mapping[str, Any]) -> dict[str, int | None]:
    """Ids of BOS, EOS and padding, by their names in transformers.

    Padding is never EOS, since what pads is never learnt. Where the file says nothing else, it's
    the first special token that begins or ends nothing.
    """
    bos = fields.get("tokenizer.ggml.bos_token_id")
    eos = fields.get("tokenizer.ggml.eos_token_id")
    pad = fields.get("tokenizer.ggml.padding_token_id")
    if pad is None or pad == eos:
        pad = next((n for n in _typed(fields, _CONTROL) if n not in (bos, eos)), None)
    return {"bos_token": bos, "eos_token": eos, "pad_token": pad}


def require_end_of_turn(tokenizer: Any) -> None:
    """Check that EOS ends a turn of the chat template.

    Raises:
        PolicyError: the file contradicts itself, so nobody knows what the model was taught.
    """
    from agent.models.chat_template import ChatFormat

    end = ChatFormat(tokenizer).end_of_turn
    if end != tokenizer.eos_token_id:
        raise PolicyError(
            f"{tokenizer.name_or_path}: its chat template ends a turn with "
            f"{tokenizer.convert_ids_to_tokens(end)}, but EOS is {tokenizer.eos_token}. Set "
            "model.template to the file of a template that fits, or model.source to another model."
        )


def _typed(fields: Mapping[str, Any], kind: int) -> list[int]:
    """Ids of the tokens of a type."""
    types = fields.get("tokenizer.ggml.token_type", [])
    return [token for token, token_type in enumerate(types) if token_type == kind]
