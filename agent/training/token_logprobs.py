"""Log-probabilities of rows in plain torch, where TRL's Triton kernel does not run.

The rows of a micro-batch are read as a prefix tree, so a beginning that they share passes through
the model once, and logits are made only where a token is predicted that counts. GRPO and the
supervised training use it.

A dense mask over the nodes of a tree computes mostly scores that it hides: of a thousand nodes that
are a question and a dozen readers' passages, three in four. Here, the nodes that a sequence adds to
the tree look at the sequence's own path. Sequences of similar size are computed together.
Neighbour: `row_buffer.py` does the same for rollouts, where keys lie in a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft.helpers import disable_input_dtype_casting
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agent.decoding.prefix_tree import PrefixTree
from agent.decoding.row_buffer import attend_in_groups

_ATTENTION = "tree"
"""Name of this module's attention among those of transformers."""
_PADDED = 1.5
"""Most scores of sequences that are computed together, as a multiple of those that count."""
_ONE_ROW = 2048
"""Most tokens of a single row in bfloat16 whose scores are kept for the backward pass."""


def fused(device: torch.device) -> bool:
    """Whether TRL's kernel computes log-probabilities on this device: on a GPU."""
    return device.type == "cuda"


def sampled_logprobs(
    model: Any, ids_B_T: Tensor, attention_B_T: Tensor, sampled_B_C: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the last C columns, [B, C]; 0 where nothing was sampled.

    Args:
        model: causal language model.
        ids_B_T: prompts and completions, padded on the right.
        attention_B_T: 1 where a row has a token.
        sampled_B_C: columns of the completions whose tokens the policy sampled.
        temperature: that of the rollout, which divides the logits.
    """
    counted_B_T = functional.pad(sampled_B_C, (ids_B_T.shape[1] - sampled_B_C.shape[1], 0))
    logprobs_K_V, places_N = predictions(model, ids_B_T, attention_B_T, counted_B_T, temperature)
    logps_N = logprobs_K_V[places_N, ids_B_T[counted_B_T]]
    with torch.no_grad():
        entropies_N = -(logprobs_K_V.exp() * logprobs_K_V).sum(-1)[places_N]
    zero = logps_N.new_zeros(sampled_B_C.shape)
    return zero.masked_scatter(sampled_B_C, logps_N), zero.masked_scatter(sampled_B_C, entropies_N)


def predictions(
    model: Any,
    ids_B_T: Tensor,
    attention_B_T: Tensor,
    counted_B_T: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Distributions from which the counted tokens are drawn, from one pass over the rows' tree.

    Args:
        counted_B_T: True at the tokens that count; the first of a row has no prediction.

    Returns:
        Log-probabilities [K, V] in float32 after each distinct beginning that a counted token
        continues; and [N], which of them each counted token is drawn from, row after row.
    """
    present_B_T = attention_B_T.bool()
    tree = PrefixTree.of([row[at].numpy() for row, at in zip(ids_B_T, present_B_T, strict=True)])
    nodes_B_T = torch.zeros_like(ids_B_T)
    nodes_B_T[present_B_T] = torch.from_numpy(np.concatenate(tree.paths))
    # The node before a token predicts it.
    nodes_K, places_N = nodes_B_T[:, :-1][counted_B_T[:, 1:]].unique(return_inverse=True)
    with _adapter_in_format_of(model):
        logits_K_V = _read(model, tree, nodes_K)
    return torch.log_softmax(logits_K_V.float() / temperature, dim=-1), places_N


@contextmanager
def _adapter_in_format_of(model: Any) -> Iterator[None]:
    """Multiply a bfloat16 model's inputs with a bfloat16 copy of the adapter, as rollouts do.

    PEFT would compute in the adapter's float32, which takes a third of a step's time.
    """
    if next(model.parameters()).dtype != torch.bfloat16:
        yield
        return
    with torch.autocast("cpu", torch.bfloat16), disable_input_dtype_casting(model):
        yield


@dataclass(frozen=True)
class _Part:
    """Sequences that attend together. S: sequences, W: most new nodes, L: longest path of one."""

    asked_Q: Tensor
    """New nodes of each sequence, padded to W: [S x W]."""
    seen_K: Tensor
    """Nodes of its path, padded to L: [S x L]."""
    mask: Tensor
    """Additive, [S, 1, heads of a group x W, L]: 0 at the path up to the node itself."""
    kept_n: Tensor
    """Places in `asked_Q` that are no padding."""


@dataclass(frozen=True)
class _Layout:
    parts: Sequence[_Part]
    places_N: Tensor
    """Place of each node among those of all parts, one part after the other."""


def _read(model: Any, tree: PrefixTree, nodes_K: Tensor) -> Tensor:
    """Logits after some nodes of a tree, [K, V].

    Args:
        model: causal language model that `row_buffer.CacheShape.of` admits.
        tree: of the rows.
        nodes_K: the nodes.
    """
    inputs = {
        "input_ids": torch.from_numpy(tree.ids_N)[None],
        "position_ids": torch.from_numpy(tree.positions_N)[None],
        "logits_to_keep": nodes_K,
        "use_cache": False,
    }
    dtype, size = next(model.parameters()).dtype, len(tree.ids_N)
    if size == max(map(len, tree.paths)) and (dtype != torch.bfloat16 or size > _ONE_ROW):
        # A single row: the kernel for causal attention needs no mask, and is faster.
        return torch.as_tensor(model(**inputs).logits)[0]
    config = getattr(model, "module", model).config  # that of the model within DDP
    # It stays, because a backward pass with gradient checkpointing runs the layers again.
    config._attn_implementation = _ATTENTION
    text = config.get_text_config()
    layout = _layout(tree, text.num_attention_heads // text.num_key_value_heads, dtype)
    # Without a mask of four dimensions, transformers would make one of all nodes.
    unused = torch.zeros(1, 1, 1, 1)
    return torch.as_tensor(model(**inputs, attention_mask=unused, tree=layout).logits)[0]


def _layout(tree: PrefixTree, copies: int, dtype: torch.dtype) -> _Layout:
    """Where the nodes attend; `copies` heads share their keys, and queries have this dtype."""
    parts = [_part(group, copies, dtype) for group in _groups(tree)]
    return _Layout(parts, torch.cat([part.asked_Q[part.kept_n] for part in parts]).argsort())


_Sequence = tuple[int, np.ndarray]
"""How many nodes of a path an earlier sequence has, and the path."""


def _groups(tree: PrefixTree) -> Iterator[list[_Sequence]]:
    """Sequences that add nodes, in groups of similar size."""
    group: list[_Sequence] = []
    longest = count = 0
    added = [pair for pair in zip(tree.shared, tree.paths, strict=True) if len(pair[1]) > pair[0]]
    for shared, path in sorted(added, key=lambda pair: (len(pair[1]) - pair[0], len(pair[1]))):
        new, most = len(path) - shared, max(longest, len(path))
        counted = count + new * len(path)
        if group and (len(group) + 1) * new * most > _PADDED * counted:
            yield group
            group, most, counted = [], len(path), new * len(path)
        group.append((shared, path))
        longest, count = most, counted
    yield group


def _part(group: Sequence[_Sequence], copies: int, dtype: torch.dtype) -> _Part:
    width = max(len(path) - shared for shared, path in group)
    length = max(len(path) for _, path in group)
    asked, seen = np.zeros((len(group), width), np.int64), np.zeros((len(group), length), np.int64)
    slots = np.zeros(asked.shape, np.bool_)
    for index, (shared, path) in enumerate(group):
        new = len(path) - shared
        asked[index, :new], seen[index, : len(path)], slots[index, :new] = path[shared:], path, True
    last_S_W = np.array([shared for shared, _ in group])[:, None] + np.arange(width)
    hidden_S_W_L = torch.from_numpy(np.arange(length) > last_S_W[:, :, None])
    mask_S_W_L = torch.zeros(1, dtype=dtype).masked_fill(hidden_S_W_L, float("-inf"))
    return _Part(
        asked_Q=torch.from_numpy(asked.ravel()),
        seen_K=torch.from_numpy(seen.ravel()),
        mask=mask_S_W_L.repeat(1, copies, 1)[:, None],
        kept_n=torch.from_numpy(np.flatnonzero(slots)),
    )


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    *,
    tree: _Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of N nodes to their ancestors, as transformers calls it; without a tree, SDPA.

    Args:
        module: the layer's attention.
        query: [1, heads, N, dim].
        key: [1, heads of keys, N, dim].
        value: as `key`.
        attention_mask: without effect.
        scaling: of the scores.
        tree: which nodes see which.
        kwargs: without effect in models that `CacheShape.of` admits.

    Returns:
        [1, N, heads, dim], and no weights.
    """
    if tree is None:
        plain: tuple[Tensor, Tensor | None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    groups, dim = key.shape[1], key.shape[3]
    outputs = []
    for part in tree.parts:
        keys, values = (
            of[0].index_select(1, part.seen_K).view(groups, len(part.mask), -1, dim).transpose(0, 1)
            for of in (key, value)
        )
        asked = query[0].index_select(1, part.asked_Q)
        one = attend_in_groups(asked, keys, values, part.mask, scaling)
        outputs.append(one.index_select(0, part.kept_n))
    return torch.cat(outputs).index_select(0, tree.places_N)[None], None


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
