"""Rows for the loss against a step worked by hand.

Two groups of three trees. The first group has rewards 0.9, 0.3 and a void; the second 0.5, 0.5,
0.5, so it has no signal.
"""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from agent.decoding.prefix_tree import PrefixTree
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import TrainSettings
from agent.training.advantages import relative_advantages
from agent.training.batching import LossRow, MicroBatch, make_rows, micro_batches
from env.models import Finish

SETTINGS = TrainSettings(scale_rewards="none")


def turn(prompt: list[int], sampled: list[int], finish: Finish = "stop") -> TurnRecord:
    logprobs = [-0.1 * token for token in sampled]
    return TurnRecord("", "", finish, prompt_ids=prompt, sampled_ids=sampled, logprobs=logprobs)


def frame(number, parent, depth, turns, stop="final", kind="rlm") -> FrameRecord:
    return FrameRecord(number, parent, depth, kind, turns, stop)


def deep_tree(reward: float | None, void: str | None = None) -> Trajectory:
    """A root of two turns with children and a grandchild.

    0 root
    ├─ 1 child, final, opened in the root's first turn
    │  └─ 4 grandchild, final
    ├─ 2 llm frame
    ├─ 3 child that a budget cut
    └─ 5 opened, but never sampled
    """
    frames = {
        0: frame(0, None, 0, [turn([1, 2], [3, 4]), turn([5], [6, 7, 8])]),
        1: frame(1, 0, 1, [turn([9], [10, 11])]),
        2: frame(2, 0, 1, [turn([12, 13], [14])], kind="llm"),
        3: frame(3, 0, 1, [turn([15], [16, 17, 18, 19], "length")], stop="budget"),
        4: frame(4, 1, 2, [turn([20], [21, 22])]),
        5: frame(5, 0, 1, [], stop="budget"),
    }
    return Trajectory("p", "easy", frames=frames, reward=reward, void=void)


def small_tree(reward: float, child_stop: str = "final") -> Trajectory:
    child = frame(1, 0, 1, [turn([3], [4, 5])], stop=child_stop)
    frames = {0: frame(0, None, 0, [turn([1], [2])]), 1: child}
    return Trajectory("q", "easy", frames=frames, reward=reward)


def by_hand() -> list[list[Trajectory]]:
    return [
        [deep_tree(0.9), small_tree(0.3), deep_tree(0.7, void="connection lost")],
        [small_tree(0.5), small_tree(0.5), small_tree(0.5)],
    ]


def found(rows: list[LossRow]) -> dict[tuple[int, int], LossRow]:
    return {(row.tree, row.frame): row for row in rows}


def test_cut_frames_void_trees_and_flat_groups_have_no_gradient():
    made = make_rows(by_hand(), SETTINGS)
    rows = found(made.rows)
    assert (rows[0, 3].fate, rows[0, 3].weight, rows[0, 3].has_gradient) == ("cut", 0, False)
    assert (0, 5) not in rows  # it never sampled
    void = [row for row in made.rows if row.tree == 2]
    assert len(void) == 5
    assert all(row.fate == "void" and row.weight == 0 and row.advantage == 0 for row in void)
    # Tree 0: root 5, frames 1, 2 and 4: (2 + 1 + 2) / 3. Trees 1, 3, 4, 5: 1 + 2 each.
    assert made.normaliser == pytest.approx(5 + 5 / 3 + 4 * 3)
    assert (made.groups, made.flat_groups) == (2, 1)
    assert not any(row.has_gradient for row in made.rows if row.tree >= 3)
    near = [[small_tree(0.5), small_tree(0.503)], [small_tree(0.2), small_tree(0.8)]]
    assert make_rows(near, SETTINGS).flat_groups == 1


def test_roots_alone_are_trained_with_the_same_advantages():
    groups = [[deep_tree(0.9), deep_tree(0.3)]]
    alone = make_rows(groups, SETTINGS.model_copy(update={"inheritance": "none"})).rows
    every = make_rows(groups, SETTINGS).rows
    assert [row.frame for row in alone] == [0, 0]
    assert [row.advantage for row in alone] == [r.advantage for r in every if r.frame == 0]


@pytest.mark.parametrize("stop", ["max_turns", "timeout", "truncated", "overspent"])
def test_a_child_without_an_answer_is_never_praised(stop):
    group = [small_tree(0.9, child_stop=stop), small_tree(0.1, child_stop=stop)]
    rows = found(make_rows([group], SETTINGS).rows)
    assert rows[0, 0].advantage == pytest.approx(0.4)
    assert (rows[0, 1].weight, rows[0, 1].advantage) == (1.0, 0.0)
    assert rows[1, 1].advantage == pytest.approx(-0.4)
    assert rows[0, 1].fate == rows[1, 1].fate == "trained"


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_overspent_tree_keeps_its_blame_and_its_children_are_never_praised(finish):
    def overspent(reward: float) -> Trajectory:
        tree = small_tree(reward, child_stop="overspent")
        tree.frames[0].stop_reason = "overspent"
        for played in tree.frames.values():
            played.turns[-1].finish = finish
        return tree

    made = make_rows([[overspent(0.0), overspent(0.1), small_tree(0.8)]], SETTINGS)
    rows = found(made.rows)
    for number, tokens in ((0, 1), (1, 2)):
        row = rows[0, number]
        assert (row.fate, row.tokens, row.advantage) == ("trained", tokens, pytest.approx(-0.3))
    assert made.normaliser == 3 * 3
    rows = found(make_rows([[overspent(0.8), small_tree(0.0)]], SETTINGS).rows)
    assert (rows[0, 0].advantage, rows[0, 1].advantage) == (pytest.approx(0.4), 0.0)


def test_a_root_that_was_cut_is_out_of_the_loss_and_a_truncated_one_is_blamed():
    for stop, weight in (("budget", 0), ("error", 0), (None, 0), ("truncated", 1)):
        tree = small_tree(0.0)
        tree.root.stop_reason, tree.root.turns[0].finish = stop, "length"
        rows = found(make_rows([[tree, small_tree(0.8)]], SETTINGS).rows)
        assert (rows[0, 0].weight, rows[0, 1].weight) == (weight, 1)
        assert (rows[0, 0].tokens, rows[0, 0].advantage) == (1, pytest.approx(-0.4))


def test_scales_of_the_advantages():

    def scaled(how: str) -> list[list[float]]:
        return relative_advantages([[1.0, 0.0], [0.6, 0.4]], TrainSettings(scale_rewards=how))

    np.testing.assert_allclose(scaled("none"), [[0.5, -0.5], [0.1, -0.1]])
    with_voids = relative_advantages([[0.9, None, None], [0.9, 0.1, None]], SETTINGS)
    assert with_voids == [[0, 0, 0], [pytest.approx(0.4), pytest.approx(-0.4), 0]]
    np.testing.assert_allclose(scaled("group"), [[1, -1], [1, -1]])
    std = np.std([1.0, 0.0, 0.6, 0.4])
    np.testing.assert_allclose(scaled("batch"), np.array([[0.5, -0.5], [0.1, -0.1]]) / std)


@pytest.mark.parametrize("how", ["group", "batch"])
def test_a_tiny_difference_does_not_become_a_full_advantage(how):
    settings = TrainSettings(scale_rewards=how, min_group_std=0.0)
    ((high, low),) = relative_advantages([[0.903, 0.900]], settings)
    assert (high, low) == (pytest.approx(0.03), pytest.approx(-0.03))


def test_non_finite_rewards_leave_other_advantages_unchanged():
    group = [small_tree(0.9), small_tree(0.1), small_tree(float("nan"))]
    rows = found(make_rows([group], SETTINGS).rows)
    assert rows[0, 0].advantage == pytest.approx(0.4)
    assert rows[2, 0].fate == "void"


def test_micro_batches_by_length_hold_every_row_once_and_at_most_the_tokens_asked_for():
    rows = make_rows(by_hand(), SETTINGS).rows
    batches = micro_batches(rows, most_tokens=14, pad_id=99, trees=False)
    assert [batch.ids_B_T.shape for batch in batches] == [
        *[(4, 2), (4, 3), (4, 3), (2, 3)],
        *[(2, 5), (1, 8), (1, 8)],
    ]
    lengths = [int(n) for batch in batches for n in batch.attention_B_T.sum(1)]
    assert lengths == sorted(len(row.ids_T) for row in rows)
    total = sum(float((b.env_mask_B_T.sum(1) * b.weights_B).sum()) for b in batches)
    assert total == pytest.approx(make_rows(by_hand(), SETTINGS).normaliser)


def test_micro_batches_of_trees_count_a_shared_beginning_once():
    rows = make_rows(by_hand(), SETTINGS).rows
    batches = micro_batches(rows, most_tokens=14, pad_id=99, trees=True)
    assert sorted(contents(batches)) == sorted(tuple(row.ids_T.tolist()) for row in rows)
    trees = [PrefixTree.of(contents([batch])) for batch in batches]
    assert all(len(tree.ids_N) <= 14 for tree in trees)
    distinct = {ids[: n + 1] for ids in contents(batches) for n in range(len(ids))}
    assert len(distinct) <= sum(len(tree.ids_N) for tree in trees) < 40
    assert sum(map(len, contents(batches))) == 64


def contents(batches: list[MicroBatch]) -> list[tuple[int, ...]]:
    """Ids of the rows that are not blank."""
    rows = [zip(b.ids_B_T, b.attention_B_T, b.families_B, strict=True) for b in batches]
    return [tuple(ids[: seen.sum()].tolist()) for ids, seen, family in chain(*rows) if family >= 0]


PER_TOKEN = ("ids_T", "env_mask_T", "logprobs_T")


def test_a_family_has_the_rows_that_share_half_of_their_tokens():
    row = found(make_rows(by_hand(), SETTINGS).rows)[0, 0]
    texts = [[1, 2, 3, 4], [5, 6], [1, 2, 9], [5, 7, 8], [1, 2, 3, 8]]
    rows = [replace(row, **{n: getattr(row, n)[: len(ids)] for n in PER_TOKEN}) for ids in texts]
    rows = [replace(row, ids_T=np.array(text)) for row, text in zip(rows, texts, strict=True)]
    for most, trees in ((100, True), (5, True), (100, False), (4, False)):
        batches = micro_batches(rows, most, 0, trees=trees)
        families = [int(family) for batch in batches for family in batch.families_B]
        assert dict(zip(contents(batches), families, strict=True)) == dict(
            zip(map(tuple, texts), (0, 1, 0, 2, 0), strict=True)
        )


def test_padding_is_on_the_right_and_the_context_holds_no_sampled_token():
    rows = found(make_rows(by_hand(), SETTINGS).rows)
    (batch,) = micro_batches([rows[0, 0], rows[0, 2]], most_tokens=16, pad_id=99, trees=False)
    assert batch.ids_B_T.tolist() == [[12, 13, 14, *[99] * 5], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert batch.attention_B_T.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8]
    assert batch.env_mask_B_T.any(0).tolist()[: batch.context + 1] == [False, False, True]


@pytest.mark.parametrize(("field", "word"), [("logprobs", "0 log-prob"), ("prompt_ids", "prompt")])
def test_a_turn_without_log_probabilities_or_prompt_is_refused(field, word):
    tree = small_tree(0.5)
    setattr(tree.frames[1].turns[0], field, [])
    with pytest.raises(ValueError, match=word):
        make_rows([[tree]], SETTINGS)


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_all_rows_in_equally_many_batches_of_equal_sizes(ranks, trees):
    rows = make_rows(by_hand(), SETTINGS).rows
    dealt = [micro_batches(rows, 8, 0, trees=trees, rank=one, ranks=ranks) for one in range(ranks)]
    sizes = [[len(batch.weights_B) for batch in batches] for batches in dealt]
    assert len(sizes[0]) > 1
    assert sizes == [sizes[0]] * ranks
    batches = list(chain(*dealt))
    assert sorted(contents(batches)) == sorted(tuple(row.ids_T.tolist()) for row in rows)
    weights = [pair for b in batches for pair in zip(b.weights_B, b.families_B, strict=True)]
    assert sum(weight for weight, _ in weights) == pytest.approx(sum(row.weight for row in rows))
    assert all(weight == 0 for weight, family in weights if family < 0)
