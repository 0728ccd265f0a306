"""A small research field: its task, metrics, data and methods, and what is true of them.

Each collection of problems has one field, made before any paper. Papers write out its facts, so
that they agree with each other unless a disagreement is planned (`plan.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from env.problems import names
from env.problems.papers.reader import Names, templates


@dataclass(frozen=True)
class Method:
    """One method of the field; exactly one paper proposes it."""

    full: str
    abbr: str
    parts: tuple[str, ...]
    """Its components."""
    corpus: str
    """Its training data, with article."""
    strength: float
    """Added to every score."""


@dataclass
class Field:
    """Facts that are true in one collection of papers."""

    rng: Random
    task: str
    unit: str
    metrics: dict[str, str]
    """Full names by abbreviation."""
    benchmarks: tuple[str, ...]
    """Both releases of each: "Kalvot-QA", "Kalvot-QA-v2"."""
    corpora: tuple[str, ...]
    methods: tuple[Method, ...]
    _scores: dict[tuple[str, ...], str] = field(default_factory=dict)
    _sizes: dict[str, str] = field(default_factory=dict)

    @property
    def units(self) -> str:
        """The documents in the plural."""
        return f"{self.unit}s"

    def method(self, abbr: str) -> Method:
        """The method of that abbreviation."""
        return next(method for method in self.methods if method.abbr == abbr)

    def size(self, corpus: str) -> str:
        """How many documents a corpus holds."""
        if corpus not in self._sizes:
            self._sizes[corpus] = f"{self.rng.randint(11, 240)},{self.rng.randint(0, 999):03d}"
        return self._sizes[corpus]

    def score(self, paper: int, abbr: str, bench: str, metric: str, split: str) -> str:
        """Score that the paper measures, in points; another paper measures another number."""
        key = (str(paper), abbr, bench, metric, split)
        if key not in self._scores:
            taken = [
                value
                for other_key, value in self._scores.items()
                if other_key[1:3] == key[1:3] or other_key[2:] == key[2:]
            ]
            base = 52.0 + self.method(abbr).strength + 2.5 * self.benchmarks.index(bench)
            base += 4.0 * list(self.metrics).index(metric) + 1.5 * (split == "dev")
            value = f"{base + self.rng.uniform(-4, 4):.1f}"
            while value in taken:
                # Other runs and near-by settings give other numbers, so that a number tells.
                value = f"{base + self.rng.uniform(-6, 6):.1f}"
            self._scores[key] = value
        return self._scores[key]


def _name_methods(rng: Random, words: Names, count: int, reserved: bool) -> list[tuple[str, str]]:
    """(full name, abbreviation) of each, no two abbreviations alike."""
    taken = set(words.metrics)
    methods: list[tuple[str, str]] = []
    while len(methods) < count:
        first = rng.choice(words.method_first.reserved if reserved else words.method_first.common)
        name = (first, rng.choice(words.method_second), rng.choice(words.method_third))
        abbr = "".join(word[0] for word in name)
        if abbr not in taken:
            taken.add(abbr)
            methods.append((" ".join(name), abbr))
    return methods


def make_field(rng: Random, methods: int, reserved: bool) -> Field:
    """A field of so many methods.

    Args:
        rng: of the collection.
        methods: how many papers propose one.
        reserved: whether it has the names that only the test split may hold.
    """
    words = templates().field
    unit, activity = rng.choice(list(words.materials.items()))
    chosen = rng.sample(names.RESERVED if reserved else names.COMMON, 3 + methods)
    rng.shuffle(chosen)
    benchmarks = []
    for name in chosen[:3]:
        first = f"{name}-{rng.choice(words.benchmarks)}"
        benchmarks += [first, f"{first}-v2"]
    corpora = tuple(f"the {name} {rng.choice(words.corpora)}" for name in chosen[3:])
    parts = [f"{first} {second}" for first in words.part_first for second in words.part_second]
    drawn = rng.sample(parts, 3 * methods)
    made = [
        Method(full, abbr, tuple(drawn[3 * i : 3 * i + 3]), corpora[i], rng.uniform(-5, 8))
        for i, (full, abbr) in enumerate(_name_methods(rng, words, methods, reserved))
    ]
    return Field(
        rng=rng,
        task=f"{rng.choice(words.manners)} {activity}",
        unit=unit,
        metrics=dict(rng.sample(list(words.metrics.items()), 3)),
        benchmarks=tuple(benchmarks),
        corpora=corpora,
        methods=tuple(made),
    )
