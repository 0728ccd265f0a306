"""The lexicon: names of one shape, evenly over the fields, the same in each process."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from env.problems.lexicon import FIELDS, lexicon, trained_names, untaught, untrained


def test_no_typo_turns_a_name_into_another_one() -> None:
    for one, other in combinations(lexicon(512), 2):
        assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2


def test_fields_have_the_same_number_of_names_taught_or_not() -> None:
    every = lexicon(512)
    assert set(Counter(every.values()).values()) == {512 // len(FIELDS)}
    held = Counter(every[name] for name in untaught(512))
    assert 0.09 <= len(untaught(512)) / 512 <= 0.11
    assert min(held[field] for field in FIELDS) >= 5


def test_a_larger_lexicon_holds_a_smaller_one() -> None:
    small, large = lexicon(256), lexicon(1024)
    assert small.items() <= large.items()
    assert untaught(256) == untaught(1024) & small.keys()


def test_training_problems_hold_most_untaught_names_but_not_all() -> None:
    hidden, left_out = untrained(512), untaught(512)
    assert hidden < left_out
    assert 20 <= len(hidden) < len(left_out) / 2
    assert trained_names(512) == {n: f for n, f in lexicon(512).items() if n not in hidden}
