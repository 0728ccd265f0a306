"""Balanced choice of problems, and confidence intervals.

Pure functions of plain values. Problems that share papers are not independent, so the bootstrap
resamples whole collections.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    mean: float
    low: float
    high: float
    n: int
    """Number of values behind the estimate."""
    level: float = 0.95

    @property
    def bounds(self) -> list[float]:
        """[low, high], as in the reports."""
        return [self.low, self.high]


def choose_problems(
    problems: Mapping[str, Sequence[str]], count: int, seed: int
) -> list[tuple[str, str]]:
    """Choose `count` problems at random, spread evenly over the difficulties as far as they go.

    Args:
        problems: problem ids by difficulty, in the order of the data.
        count: number of problems; if there are fewer, all are chosen. The first difficulties take
            the remainder, and what others lack.
        seed: the same seed and the same ids give the same choice.

    Returns:
        (difficulty, problem_id), grouped by difficulty, in the order of the data.
    """
    levels, there = list(problems), [len(ids) for ids in problems.values()]
    even = [count // len(levels) + (k < count % len(levels)) for k in range(len(levels))]
    shares = list(map(min, even, there))
    for k in range(len(levels)):
        shares[k] += min(there[k] - shares[k], count - sum(shares))
    chosen: list[tuple[str, str]] = []
    for index, (level, share) in enumerate(zip(levels, shares, strict=True)):
        ids = problems[level]
        picked = np.random.default_rng([seed, index]).permutation(len(ids))[:share]
        chosen.extend((level, ids[i]) for i in sorted(picked))
    return chosen


@dataclass(frozen=True)
class Bootstrap:
    """Percentile bootstrap of means over whole collections."""

    resamples: int
    seed: int
    level: float = 0.95

    def mean(self, values: Sequence[float], collections: Sequence[str]) -> Interval:
        """Mean of the values with its interval; for paired values, pass the differences.

        Args:
            values: at least one.
            collections: that of each value.
        """
        array = np.asarray(values, dtype=float)
        _, index = np.unique(np.asarray(collections, dtype=str), return_inverse=True)
        sums, counts = np.bincount(index, weights=array), np.bincount(index)  # [collections]
        rng = np.random.default_rng(self.seed)
        means = np.empty(self.resamples)
        for start in range(0, self.resamples, 1000):  # slices bound the memory
            stop = min(start + 1000, self.resamples)
            drawn = rng.integers(len(sums), size=(stop - start, len(sums)))
            means[start:stop] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
        low, high = np.quantile(means, [(1 - self.level) / 2, (1 + self.level) / 2])
        return Interval(float(array.mean()), float(low), float(high), len(array), self.level)
