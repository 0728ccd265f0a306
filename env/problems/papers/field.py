"""A small research field: its task, metrics, data and methods, and what is true of them.

One field for each group of problems, made before any paper: papers then write out its facts, so
that they agree with each other unless a disagreement is planned (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from env.problems import names

MATERIALS = (
    ("contract", "clause retrieval"),
    ("statute", "provision tracking"),
    ("patent", "claim grounding"),
    ("inspection report", "hazard linking"),
    ("discharge note", "symptom attribution"),
    ("newspaper page", "event dating"),
    ("cookbook", "recipe alignment"),
    ("customs notice", "tariff lookup"),
    ("ship log", "route description"),
    ("maintenance ticket", "defect grouping"),
    ("council minute", "decision tracing"),
    ("herbarium label", "locality resolution"),
    ("tender document", "requirement matching"),
    ("auction catalogue", "provenance chaining"),
    ("weather bulletin", "warning extraction"),
    ("user manual", "instruction search"),
)
"""What a field's documents are, and what is done with them."""

MANNERS = (
    "layout-aware",
    "cross-document",
    "low-resource",
    "multi-page",
    "query-focused",
    "weakly supervised",
    "time-aware",
    "open-domain",
    "fine-grained",
    "streaming",
)


class Metric(NamedTuple):
    """How a field keeps score."""

    full: str
    short: str


METRICS = (
    Metric("exact match", "EM"),
    Metric("macro-averaged F1", "MF"),
    Metric("recall at ten", "R@10"),
    Metric("mean reciprocal rank", "MRR"),
    Metric("balanced accuracy", "BAcc"),
    Metric("normalised gain at five", "nG@5"),
    Metric("span overlap", "SO"),
    Metric("boundary precision", "BP"),
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = _words(
    "Gated Nested Sparse Anchored Layered Contrastive Deferred Weighted Cascaded Bounded Windowed "
    "Paired Iterative Factored Unrolled Quantised"
)
_FIRST_RESERVED = _words("Hinged Tiled Mirrored Jittered Zoned Kerneled Oblique Laddered")
_SECOND = _words(
    "Span Clause Graph Pointer Token Section Table Memory Prototype Margin Query Evidence Header "
    "Layout Index Window"
)
_THIRD = _words(
    "Retrieval Matching Routing Voting Alignment Decoding Pooling Ranking Folding Transfer "
    "Propagation Selection Linking Distillation"
)

_PART_FIRST = _words(
    "span page margin anchor length overlap header entity caption footnote sentence layout"
)
_PART_SECOND = _words("gate pointer loss cache prior filter smoother encoder queue memory")

BENCHMARK_KINDS = ("QA", "Bench", "Find", "Trace", "Link")
CORPUS_KINDS = ("Archive", "Corpus", "Collection", "Repository")


@dataclass(frozen=True)
class Method:
    """One method of the field; exactly one paper proposes it."""

    full: str
    abbr: str
    parts: tuple[str, ...]
    """Its components."""
    corpus: str
    """What it was trained on, with article."""
    strength: float
    """Added to every score."""


@dataclass
class Field:
    """What is true in one group of papers."""

    rng: Random
    task: str
    unit: str
    metrics: tuple[Metric, ...]
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

    def metric(self, short: str) -> Metric:
        """The metric of that abbreviation."""
        return next(metric for metric in self.metrics if metric.short == short)

    def size(self, corpus: str) -> str:
        """How many documents a corpus holds."""
        if corpus not in self._sizes:
            drawn = f"{self.rng.randint(11, 240)},{self.rng.randint(0, 999):03d}"
            self._sizes[corpus] = drawn
        return self._sizes[corpus]

    def score(self, paper: int, abbr: str, bench: str, metric: str, split: str) -> str:
        """What that paper measures, in points; another paper measures another number."""
        key = (str(paper), abbr, bench, metric, split)
        if key not in self._scores:
            taken = [
                value
                for told, value in self._scores.items()
                if told[1:3] == key[1:3] or told[2:] == key[2:]
            ]
            base = 52.0 + self.method(abbr).strength + 2.5 * self.benchmarks.index(bench)
            base += 4.0 * self.metrics.index(self.metric(metric)) + 1.5 * (split == "dev")
            value = f"{base + self.rng.uniform(-4, 4):.1f}"
            while value in taken:
                # Other runs and near-by settings give other numbers, so that a number tells.
                value = f"{base + self.rng.uniform(-6, 6):.1f}"
            self._scores[key] = value
        return self._scores[key]


def _name_methods(rng: Random, count: int, reserved: float) -> list[tuple[str, str]]:
    """(full name, abbreviation) of each, no two abbreviations alike."""
    taken = [metric.short for metric in METRICS]
    found: list[tuple[str, str]] = []
    held = round(reserved * count)
    while len(found) < count:
        first = rng.choice(_FIRST_RESERVED if len(found) < held else _FIRST)
        words = (first, rng.choice(_SECOND), rng.choice(_THIRD))
        abbr = "".join(word[0] for word in words)
        if abbr not in taken:
            taken.append(abbr)
            found.append((" ".join(words), abbr))
    return found


def _data_names(chosen: Sequence[str], rng: Random) -> tuple[list[str], list[str]]:
    """Benchmarks in two releases each from the first three names, corpora from the others."""
    benchmarks = []
    for name in chosen[:3]:
        first = f"{name}-{rng.choice(BENCHMARK_KINDS)}"
        benchmarks += [first, f"{first}-v2"]
    return benchmarks, [f"the {name} {rng.choice(CORPUS_KINDS)}" for name in chosen[3:]]


def make_field(rng: Random, methods: int, reserved: float) -> Field:
    """A field of so many methods.

    Args:
        rng: of the group.
        methods: how many papers propose one.
        reserved: share of the names that only the test split may hold.
    """
    unit, activity = rng.choice(MATERIALS)
    chosen = names.choose(rng, 3 + methods, reserved)
    benchmarks, corpora = _data_names(chosen, rng)
    parts = [f"{first} {second}" for first in _PART_FIRST for second in _PART_SECOND]
    drawn = rng.sample(parts, 3 * methods)
    made = [
        Method(full, abbr, tuple(drawn[3 * i : 3 * i + 3]), corpora[i], rng.uniform(-5, 8))
        for i, (full, abbr) in enumerate(_name_methods(rng, methods, reserved))
    ]
    return Field(
        rng=rng,
        task=f"{rng.choice(MANNERS)} {activity}",
        unit=unit,
        metrics=tuple(rng.sample(METRICS, 3)),
        benchmarks=tuple(benchmarks),
        corpora=tuple(corpora),
        methods=tuple(made),
    )
