"""A prefix tree has one node for each distinct prefix, which one sequence adds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.decoding.prefix_tree import PrefixTree, packs

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


@given(SEQUENCES)
def test_each_node_is_one_prefix_that_one_sequence_adds(sequences) -> None:
    tree = PrefixTree.of(sequences)
    prefixes = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert len(tree.ids_N) == len(prefixes)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tree.ids_N[path].tolist() == sequence
        assert tree.positions_N[path].tolist() == list(range(len(sequence)))
    added = [
        int(node)
        for path, shared in zip(tree.paths, tree.shared, strict=True)
        for node in path[shared:]
    ]
    assert sorted(added) == list(range(len(tree.ids_N)))


@given(SEQUENCES, st.integers(1, 12))
def test_packs_take_each_sequence_once_and_keep_to_their_size(sequences, most) -> None:
    found = list(packs(sequences, most))
    assert sorted(index for pack in found for index in pack) == list(range(len(sequences)))
    for pack in found:
        nodes = len(PrefixTree.of([sequences[index] for index in pack]).ids_N)
        assert nodes <= most or len(pack) == 1
