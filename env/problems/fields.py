"""Synthetic problems of the world `fields`, in which code finds sentences and a reader chooses.

A sentence names a method, a score and a benchmark; a question names a method and a field. The
lexicon alone says which benchmark belongs to which field, and no paper does.

Each paper has three sentences of an asked method, its candidates, and some of other methods. The
candidates of the field are gold. They are drawn, written and placed as all others are: each with
a benchmark that the method has nowhere else, in a random paper. Splits share no method, but they
share the lexicon, since it is knowledge and not text. A twentieth of it is in no training problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

from pydantic import Field, model_validator

from env.problems.lexicon import FIELDS, MOST, lexicon, trained_names, untrained
from env.problems.names import COMMON, FACTS, NAMES, RESERVED, SCORES, TITLE
from env.problems.schema import SPLITS, Fact, Paper, Problem, Span, Split, tier_of
from env.settings import Settings

FILLER_NAMES = 16
"""Number of names of a collection that no question asks for."""

HITS = 3
"""Sentences of a method that a question asks for, in each paper."""


def gold_sentences(papers: int) -> int:
    """Gold sentences of a question: an eighth of the method's sentences."""
    return max(1, round(HITS * papers / len(FIELDS)))


class LevelSettings(Settings):
    """One difficulty."""

    papers: int = Field(ge=2, le=64)
    """Papers of one collection."""

    @property
    def gold(self) -> int:
        """Gold sentences of a question."""
        return gold_sentences(self.papers)

    @property
    def distractors(self) -> int:
        """Sentences of its method that are no gold."""
        return HITS * self.papers - self.gold


class SyntheticSettings(Settings):
    """Generated problems: the made-up world `fields`, in which nano learns."""

    collections: dict[Split, int] = {"train": 400, "validation": 40, "test": 100}
    """Collections per split and difficulty."""
    questions_per_collection: int = Field(3, ge=1, le=7)
    """Sharing papers."""
    levels: dict[str, LevelSettings] = {
        "easy": LevelSettings(papers=4),
        "medium": LevelSettings(papers=8),
        "hard": LevelSettings(papers=16),
    }
    lexicon: int = Field(512, ge=len(FIELDS), le=MOST, multiple_of=len(FIELDS))
    """Benchmarks that have a field."""
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _lexicon_is_large_enough(self) -> SyntheticSettings:
        counts = Counter(trained_names(self.lexicon).values())  # by field
        fewest, most = min(counts.values()), max(counts.values())
        for name, level in self.levels.items():
            if level.gold > fewest or level.distractors > counts.total() - most:
                raise ValueError(
                    f"level {name!r}: a method has {HITS * level.papers} sentences, each with "
                    f"another benchmark; raise lexicon {self.lexicon} or lower papers"
                )
        return self


QUESTIONS = (
    "How well does {x} do on {f}?",
    "How good is {x} on {f}?",
    "What does {x} score on {f}?",
    "Which scores does {x} reach on {f}?",
    "Give the scores of {x} on {f}.",
    "Report {x} on {f}.",
    "On {f}, what does {x} get?",
    "For {f}, how well does {x} do?",
)
MOST_OTHERS = 4
"""Most sentences of a paper about methods that no question asks for; the least is 1."""

_VALIDATED_EVERY = 8
METHODS: Mapping[Split, tuple[str, ...]] = {
    "train": tuple(name for i, name in enumerate(COMMON) if i % _VALIDATED_EVERY),
    "validation": COMMON[::_VALIDATED_EVERY],
    "test": RESERVED,
}
"""Methods of each split, disjoint: 1,120, 160 and 320."""

_EVERY_METHOD = frozenset(NAMES)
_WORD = re.compile(r"\w+")
BENCHMARK = re.compile(r"\b[A-Z][a-z]{2}a[a-z]{3}\b")
"""Name of a benchmark, in the lexicon or not."""

field_of_benchmark = cache(lexicon)
"""Field of each benchmark of a lexicon of this size; never change it."""
_trained = cache(trained_names)


@cache
def _any_untrained(size: int) -> re.Pattern[str]:
    """Finds a name of no training problem, even within a word."""
    return re.compile("|".join(sorted(untrained(size))))


def read_question(question: str) -> tuple[str, str]:
    """Method and field of a question.

    Raises:
        ValueError: the question does not name one method and one field of the lexicon.
    """
    words = _WORD.findall(question)
    methods = sorted(_EVERY_METHOD.intersection(words))
    fields = sorted(set(FIELDS).intersection(words))
    if len(methods) != 1 or len(fields) != 1:
        raise ValueError(
            f"the question names the methods {methods} and the fields {fields}; "
            f"name one method, and one field of {', '.join(FIELDS)}"
        )
    return methods[0], fields[0]


def field_of(sentence: str, size: int) -> str:
    """Field of the benchmark that a sentence names.

    Args:
        sentence: text with one benchmark.
        size: names of the lexicon.

    Raises:
        ValueError: the sentence names no benchmark of the lexicon, or several.
    """
    benchmarks = BENCHMARK.findall(sentence)
    fields = field_of_benchmark(size)
    if len(benchmarks) != 1 or benchmarks[0] not in fields:
        raise ValueError(
            f"a sentence names the benchmarks {benchmarks}; name one of the {size} of the lexicon "
            "(prepare.synthetic.lexicon)"
        )
    return fields[benchmarks[0]]


def sentences_with(name: str, papers: Sequence[Paper]) -> tuple[Span, ...]:
    """Spans of all lines with a name, in the order of the papers."""
    spans = []
    for paper in papers:
        start = 0
        for line in paper.text.split("\n"):
            end = start + len(line)
            if name in line:
                spans.append(Span(paper_id=paper.paper_id, start=start, end=end, text=line))
            start = end + 1
    return tuple(spans)


def field_fault(problem: Problem, size: int) -> str | None:
    """Reason why a problem is not one of this world; None if it is.

    Args:
        problem: any problem.
        size: names of the lexicon.
    """
    try:
        method, field = read_question(problem.question)
        fields = [field_of(span.text, size) for span in problem.candidates]
    except ValueError as error:
        return str(error)
    if method not in METHODS[problem.split]:
        return f"{method} is a method of another split than {problem.split}"
    texts = "\n".join(paper.text for paper in problem.papers)
    if problem.split == "train" and (named := _any_untrained(size).findall(texts)):
        return f"{min(named)} is a benchmark of no training problem"
    hits = Counter(span.paper_id for span in problem.candidates)
    if problem.candidates != sentences_with(method, problem.papers) or any(
        hits[paper.paper_id] != HITS for paper in problem.papers
    ):
        return f"the candidates are not {HITS} sentences of {method} in each paper"
    gold = tuple(s for s, read in zip(problem.candidates, fields, strict=True) if read == field)
    if tuple(span for fact in problem.evidence for span in fact.spans) != gold:
        return f"the evidence is not what the lexicon says of {field}"
    if len(gold) != gold_sentences(len(problem.papers)):
        return f"{len(gold)} of {len(problem.candidates)} candidates are gold, not an eighth"
    if any(not set(FIELDS).isdisjoint(_WORD.findall(paper.text)) for paper in problem.papers):
        return "fields are printed, so that code can read them"
    return None


def write_collection(
    settings: SyntheticSettings, split: Split, difficulty: str, number: int
) -> list[Problem]:
    """Problems of one collection: a question for each of its asked methods."""
    # Each collection has its own generator, so that adding one changes no other.
    rng = Random(f"{settings.seed}/fields/{split}/{difficulty}/{number}")
    level = settings.levels[difficulty]
    fields = field_of_benchmark(settings.lexicon)
    if split == "train":
        fields = _trained(settings.lexicon)
    asked = settings.questions_per_collection
    chosen = rng.sample(METHODS[split], asked + FILLER_NAMES)
    topics = [(method, rng.choice(FIELDS)) for method in chosen[:asked]]
    lines: list[list[tuple[str, str]]] = [[] for _ in range(level.papers)]
    for method, field in topics:
        fitting = [name for name in fields if fields[name] == field]
        rest = [name for name in fields if fields[name] != field]
        hits = rng.sample(fitting, level.gold) + rng.sample(rest, level.distractors)
        rng.shuffle(hits)
        for place, benchmark in enumerate(hits):
            lines[place % level.papers].append((method, benchmark))
    papers = _write_papers(rng, lines, chosen[asked:], list(fields))
    # The number of gold papers follows from the numbers of collection and question. So ids are
    # random draws, as expensive to guess from as the texts.
    ids = Random(f"{settings.seed}/ids/{split}/{difficulty}/{number}")
    collection_id = f"{split}-{difficulty}-{ids.getrandbits(48):012x}"
    problems = []
    for place, (method, field) in zip(ids.sample(range(asked), asked), topics, strict=True):
        candidates = sentences_with(method, papers)
        gold = [span for span in candidates if field_of(span.text, settings.lexicon) == field]
        problem = Problem(
            problem_id=f"{collection_id}-{place}",
            collection_id=collection_id,
            split=split,
            difficulty=difficulty,
            tier=tier_of(len({span.paper_id for span in gold})),
            question=rng.choice(QUESTIONS).format(x=method, f=field),
            papers=tuple(papers),
            evidence=tuple(Fact(fact_id=f"f{n}", spans=(s,)) for n, s in enumerate(gold, 1)),
            candidates=candidates,
        )
        problems.append(problem)
    return problems


def _write_papers(
    rng: Random,
    lines: Sequence[Sequence[tuple[str, str]]],
    others: Sequence[str],
    benchmarks: Sequence[str],
) -> list[Paper]:
    """Papers with the given (method, benchmark) pairs and some of other methods, in any order."""
    papers = []
    for number, pairs in enumerate(lines, 1):
        besides = [
            (rng.choice(others), rng.choice(benchmarks)) for _ in range(rng.randint(1, MOST_OTHERS))
        ]
        shuffled = rng.sample([*pairs, *besides], len(pairs) + len(besides))
        written = [
            rng.choice(FACTS).format(x=method, y=benchmark, n=rng.choice(SCORES))
            for method, benchmark in shuffled
        ]
        title = TITLE.format(z=rng.choice(others))
        text = "\n".join([title, *written])
        papers.append(Paper(paper_id=f"p{number}", title=title, abstract=written[0], text=text))
    return papers


def generate(settings: SyntheticSettings) -> list[Problem]:
    """Problems of all splits and levels, in a fixed order: the same in every process.

    Args:
        settings: sizes, levels and the seed.

    Returns:
        `collections[split] x questions_per_collection` problems for each split and level, without
        those whose question a later split asks too: names may repeat in large worlds. Each gold
        span is a whole sentence.
    """
    problems = [
        problem
        for split in SPLITS
        for difficulty in settings.levels
        for number in range(settings.collections.get(split, 0))
        for problem in write_collection(settings, split, difficulty, number)
    ]
    asked: dict[str, str] = {problem.question: problem.split for problem in problems}
    return [problem for problem in problems if asked[problem.question] == problem.split]
