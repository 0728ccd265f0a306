"""How often the gate opens: exact, by what an episode earns and whether it was read."""

from math import comb

import pytest

from tasks.gate import FINDS, SUCCESSES
from tasks.gate import MOST as PLAYED

# Shares of 1,800 episodes a level of the default world (900 problems, two seeds) that succeed by
# luck: 52 and 67 at easy. None of them counts as read.
RANDOM_CODE = {"easy": 0.029, "hard": 0.0}
RANDOM_LINE = {"easy": 0.037, "hard": 0.0}


def opens(share: float, least: int) -> float:
    """Probability of at least so many episodes of a level, each with this probability."""
    return 1 - sum(comb(PLAYED, n) * share**n * (1 - share) ** (PLAYED - n) for n in range(least))


def either(first: float, second: float) -> float:
    return 1 - (1 - first) * (1 - second)


@pytest.mark.parametrize("luck", [RANDOM_CODE, RANDOM_LINE])
def test_random_code_and_random_lines_open_it_in_one_of_a_hundred_runs_at_most(luck):
    assert either(*(opens(share, SUCCESSES) for share in luck.values())) < 0.01


SHARES = [(0.02, 0.34, 0.00), (0.05, 0.81, 0.03), (0.10, 0.99, 0.39), (0.20, 1.00, 0.97)]


@pytest.mark.parametrize(("share", "reads", "only_searches"), SHARES)
def test_a_model_opens_it_as_often_as_the_docstring_says(share, reads, only_searches):
    assert opens(share, FINDS) == pytest.approx(reads, abs=0.005)
    assert opens(share, SUCCESSES) == pytest.approx(only_searches, abs=0.005)
