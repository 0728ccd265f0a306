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

from env.problems.lexicon import FIELDS, lexicon, trained_names, untrained
from env.problems.names import COMMON, FACTS, NAMES, RESERVED, SCORES, TITLE
from env.problems.schema import Fact, Paper, Problem, Span, Split, make_collection, make_paper
from env.problems.settings import FILLER_NAMES, HITS, SyntheticSettings, gold_sentences

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


def fault(problem: Problem, size: int) -> str | None:
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
    if problem.split == "train":
        texts = "\n".join(paper.text for paper in problem.papers)
        if named := _any_untrained(size).findall(texts):
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
    sentences = [sentences_with(method, papers) for method, _ in topics]
    asked_for = []
    for (method, field), candidates in zip(topics, sentences, strict=True):
        gold = (span for span in candidates if field_of(span.text, settings.lexicon) == field)
        evidence = [Fact(fact_id=f"f{n}", spans=(span,)) for n, span in enumerate(gold, 1)]
        asked_for.append((rng.choice(QUESTIONS).format(x=method, f=field), evidence))
    made = make_collection(settings.seed, split, difficulty, number, papers, asked_for)
    return [
        problem.model_copy(update={"candidates": candidates})
        for problem, candidates in zip(made, sentences, strict=True)
    ]


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
        papers.append(make_paper(number, TITLE.format(z=rng.choice(others)), written))
    return papers
