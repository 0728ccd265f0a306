"""Statistics of episodes: a balanced choice of problems, and confidence intervals.

Pure functions of plain values. Problems that share papers are not independent, so intervals of
means resample whole groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    mean: float
    low: float
    high: float
    n: int
    """Values the estimate rests on."""
    level: float = 0.95

    @property
    def bounds(self) -> list[float]:
        """[low, high], as the reports write it."""
        return [self.low, self.high]


def choose_problems(
    problems: Mapping[str, Sequence[str]], count: int, seed: int
) -> list[tuple[str, str]]:
    """`count` problems, spread evenly over the difficulties, chosen by a seed.

    Args:
        problems: problem ids by difficulty, in any order.
        count: how many in all; the first difficulties take what does not divide.
        seed: the same seed and the same ids give the same choice.

    Returns:
        (difficulty, problem_id), difficulty by difficulty, ids sorted within each.

    Raises:
        ValueError: a difficulty holds fewer problems than its share.
    """
    chosen: list[tuple[str, str]] = []
    levels = list(problems)
    for index, level in enumerate(levels):
        share = count // len(levels) + (index < count % len(levels))
        ids = sorted(problems[level])
        if len(ids) < share:
            raise ValueError(f"{share} problems of level {level!r} wanted, {len(ids)} there")
        picked = np.random.default_rng([seed, index]).permutation(len(ids))[:share]
        chosen.extend((level, ids[i]) for i in sorted(picked))
    return chosen


def _group_totals(
    values: NDArray[np.float64], groups: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the values of each group, both (groups,)."""
    _, index = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    sums = np.bincount(index, weights=values).astype(np.float64)
    return sums, np.bincount(index).astype(np.float64)


@dataclass(frozen=True)
class Bootstrap:
    """How intervals of means are made: percentile bootstrap over whole groups."""

    resamples: int
    seed: int
    level: float = 0.95

    def mean(self, values: Sequence[float], groups: Sequence[str]) -> Interval:
        """Mean of the values with its interval; of a paired comparison, pass the differences.

        Raises:
            ValueError: no values, or not one group for each.
        """
        if not len(values) or len(values) != len(groups):
            raise ValueError(f"{len(values)} values, {len(groups)} groups: want one each, and some")
        array = np.asarray(values, dtype=float)
        sums, counts = _group_totals(array, groups)
        rng = np.random.default_rng(self.seed)
        means = np.empty(self.resamples)
        for start in range(0, self.resamples, 1000):  # in slices: (1000, groups) stays small
            stop = min(start + 1000, self.resamples)
            drawn = rng.integers(len(sums), size=(stop - start, len(sums)))
            means[start:stop] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
        low, high = np.quantile(means, [(1 - self.level) / 2, (1 + self.level) / 2])
        return Interval(float(array.mean()), float(low), float(high), len(array), self.level)


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """A rate with its Wilson score interval; sound at 0 and at n successes.

    Raises:
        ValueError: no trials.
    """
    if n < 1:
        raise ValueError("a rate of no trials")
    found = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(found.low), float(found.high), n, level)
