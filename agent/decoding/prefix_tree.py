"""Token sequences that share their beginnings, laid out so that a model reads each beginning once.

Frames of a rollout repeat each other: every agent starts with the same system message, and the
trees of a group ask readers the same questions about the same passages. A `PrefixTree` keeps one
node for each distinct prefix. A forward pass over its nodes, in which a node sees its ancestors and
itself, computes what separate passes over the sequences would, up to the last digits.

Pure numpy. `agent/training` reads the rows of a loss this way. Rollouts share beginnings without a
tree, because `sampling.py` has a buffer to copy keys and values in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[int] | NDArray[np.int64]
"""Token ids of a sequence."""


@dataclass(frozen=True)
class PrefixTree:
    """Distinct prefixes of some sequences. N: nodes, in an order in which parents come first."""

    ids_N: NDArray[np.int64]
    """Token of each node."""
    positions_N: NDArray[np.int64]
    """Number of tokens before it in its sequence."""
    paths: list[NDArray[np.int64]]
    """Nodes of each sequence, from its first token to its last."""
    shared: list[int]
    """How many of its first nodes each sequence takes over; it is the first with the others."""

    @staticmethod
    def of(sequences: Sequence[Tokens]) -> PrefixTree:
        """Tree of some sequences, which may be equal."""
        arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        paths = [path := np.zeros(0, dtype=np.int64)] * len(arrays)
        ids, positions, taken = [path], [path], [0] * len(arrays)
        nodes = 0
        for index, shared in zip(*in_order(arrays), strict=True):
            new = np.arange(nodes, nodes + len(arrays[index]) - shared)
            paths[index] = path = np.concatenate([path[:shared], new])
            ids.append(arrays[index][shared:])
            positions.append(np.arange(shared, len(path)))
            taken[index] = shared
            nodes += len(new)
        return PrefixTree(np.concatenate(ids), np.concatenate(positions), paths, taken)


def in_order(sequences: Sequence[Tokens]) -> tuple[list[int], list[int]]:
    """Lexicographic order, and how many tokens each sequence there shares with the one before."""
    arrays = [np.asarray(sequence, dtype=">u4") for sequence in sequences]
    texts = [array.tobytes() for array in arrays]  # bytes are compared much faster than tokens
    order = sorted(range(len(texts)), key=texts.__getitem__)
    pairs = pairwise(arrays[index] for index in order)
    return order, [0, *(_common(one, other) for one, other in pairs)][: len(order)]


def packs(sequences: Sequence[Tokens], most_nodes: int) -> Iterator[list[int]]:
    """Indices of the sequences of each pack: a pack's tree has at most `most_nodes` nodes.

    Sequences with a common beginning are neighbours in lexicographic order, so they share a pack
    where it has room. A longer sequence is a pack of its own.
    """
    pack: list[int] = []
    nodes = 0
    for index, shared in zip(*in_order(sequences), strict=True):
        new = len(sequences[index]) - shared
        if pack and nodes + new > most_nodes:
            yield pack
            pack, nodes, new = [], 0, len(sequences[index])
        pack.append(index)
        nodes += new
    if pack:
        yield pack


def by_length(sequences: Sequence[Tokens], most: int, ranks: int = 1) -> Iterator[list[int]]:
    """Indices of the sequences of each batch: padded, it has at most `most` tokens for each rank.

    Each rank gets at least one sequence, so one that is longer than `most` is its rank's alone.
    """
    batch: list[int] = []
    for index in sorted(range(len(sequences)), key=lambda index: len(sequences[index])):
        rows = -(-(len(batch) + 1) // ranks)
        if len(batch) >= ranks and rows * len(sequences[index]) > most:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    apart = np.flatnonzero(one[:length] != other[:length])
    return int(apart[0]) if len(apart) else length
