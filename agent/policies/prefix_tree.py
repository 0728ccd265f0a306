"""Token sequences that share their beginnings, laid out so that a model reads each beginning once.

Frames of a rollout repeat each other: every agent starts with the same system message, and the
trees of a group ask readers the same questions about the same passages. A `PrefixTree` keeps one
node for each distinct prefix. A forward pass over its nodes, in which a node sees its ancestors and
itself, computes what separate passes over the sequences would, up to the last digits.

Pure numpy. `agent/training` reads the rows of a loss this way. Rollouts share beginnings without a
tree's mask, because `sampling.py` has a buffer to copy keys and values in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PrefixTree:
    """Distinct prefixes of some sequences. N: nodes, in an order in which parents come first."""

    ids_N: NDArray[np.int64]
    """Token of each node."""
    positions_N: NDArray[np.int64]
    """Number of tokens before it in its sequence."""
    parents_N: NDArray[np.int64]
    """Node of the token before it; -1 for a first token."""
    paths: list[NDArray[np.int64]]
    """Nodes of each sequence, from its first token to its last."""

    @staticmethod
    def of(sequences: Sequence[Sequence[int]]) -> PrefixTree:
        """Tree of some sequences, which may be equal."""
        nodes: dict[tuple[int, int], int] = {}
        positions: list[int] = []
        paths = []
        for sequence in sequences:
            path, parent = np.empty(len(sequence), dtype=np.int64), -1
            for place, token in enumerate(sequence):
                parent = nodes.setdefault((parent, int(token)), len(nodes))
                if parent == len(positions):
                    positions.append(place)
                path[place] = parent
            paths.append(path)
        edges = np.array(list(nodes), dtype=np.int64).reshape(-1, 2)
        return PrefixTree(edges[:, 1], np.array(positions, dtype=np.int64), edges[:, 0], paths)

    def visible(self) -> NDArray[np.bool_]:
        """[N, N]: whether a node (row) sees another one (column): its ancestors and itself."""
        seen_N_N = np.eye(len(self.ids_N), dtype=np.bool_)
        for node, parent in enumerate(self.parents_N):
            if parent >= 0:
                seen_N_N[node] |= seen_N_N[parent]
        return seen_N_N


def packs(sequences: Sequence[Sequence[int]], most_nodes: int) -> Iterator[list[int]]:
    """Indices of the sequences of each pack: a pack's tree has at most `most_nodes` nodes.

    Sequences with a common beginning are neighbours in lexicographic order, so they share a pack
    where it has room. A longer sequence is a pack of its own.
    """
    pack: list[int] = []
    nodes = 0
    for index in sorted(range(len(sequences)), key=lambda index: tuple(sequences[index])):
        sequence = sequences[index]
        new = len(sequence) - (_common(sequences[pack[-1]], sequence) if pack else 0)
        if pack and nodes + new > most_nodes:
            yield pack
            pack, nodes, new = [], 0, len(sequence)
        pack.append(index)
        nodes += new
    if pack:
        yield pack


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
