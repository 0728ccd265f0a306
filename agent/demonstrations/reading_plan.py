"""Plan of the demonstrator: which words to search for, and which passages to quote.

Pure functions of a problem with its gold. Words come from texts that a frame has been shown, and a
quote must be shown before it is written. Gold only decides which of them are worth a turn.
Neighbours: `cells.py` writes the code, `demonstrator.py` plays it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations

from env.problems.schema import Fact, Problem, Span
from env.ranking import occurrences, snippets
from env.settings import LimitSettings
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1

LEAST_F1 = 0.99
"""Least F1 of a demonstration's quotes; the rest is white space at the ends of spans."""
_MOST_CANDIDATES = 10
"""Most words that are tried in combinations."""
_MOST_WORDS = 3
"""Most words of one search."""
_LONG = 240
"""Characters from which a quote is written by its first and last words."""
_EDGE = 40
"""Characters of these first and last words."""

Cost = Callable[[Sequence[str]], float]
"""Cost of searching for some words; infinite if it is in vain."""

_NAME = re.compile(r"[A-Z][\w-]*(?: [A-Z][\w-]*)+")
_WORD = re.compile(r"\w[\w'-]+")
_COMMON = frozenset(
    word
    for line in (
        "a about after all also an and any are as at be because been before being between",
        "both but by can could did do does during each every for from get give given had",
        "has have how however if in into is it its just least less made make many may",
        "might more most much must no not of on one only or other our out over own",
        "per same say says she should so some still such than that the their them then there",
        "these they this those through to under until up use used using very was we were what",
        "when where whether which while who whom whose why will with within without would you your",
    )
    for word in line.split()
)
"""Words that are not worth a search."""


def fault(problem: Problem, limits: LimitSettings, rewards: RewardSettings) -> str | None:
    """Reason why quotes cannot reproduce the gold of a problem; None if they can.

    Args:
        problem: any problem, with its gold.
        limits: characters that a child may be given.
        rewards: rules of a valid quote.
    """
    gold = [span for fact in problem.evidence for span in fact.spans]
    longest = max((len(problem.texts[span.paper_id]) for span in gold), default=0)
    if longest > limits.child_context_chars and not problem.candidates:
        return f"a paper with evidence has {longest} characters, too many for a child"
    if problem.candidates and shared_word(problem) is None:
        return "no word of the question is in all candidates"
    items = [
        span.text if problem.candidates else {"paper_id": span.paper_id, "text": span.text}
        for span in gold
    ]
    f1 = span_f1(locate(items, problem.texts, rewards).retrieved, problem.places).f1
    if f1 < LEAST_F1:
        return f"its quotes have F1 {f1:.2f} (spans are too short, or also occur elsewhere)"
    return None


def words_of(text: str) -> list[str]:
    """Names and words of a text that are worth a search, without repeats."""
    single = (w for w in _WORD.findall(text) if len(w) > 2 and w.lower() not in _COMMON)
    return list(dict.fromkeys([*_NAME.findall(text), *single]))


def shared_word(problem: Problem) -> str | None:
    """The word of the question that all candidates contain; None without one."""
    texts = [span.text for span in problem.candidates]
    matches = (w for w in words_of(problem.question) if all(w in text for text in texts))
    return next(matches, None)


def papers_with(word: str, texts: Mapping[str, str]) -> set[str]:
    """Ids of the papers in which `search` finds a word: as it is written, else in any case."""
    exact = {paper_id for paper_id, text in texts.items() if word in text}
    return exact or {i for i, text in texts.items() if word.lower() in text.lower()}


def search_words(problem: Problem) -> list[str]:
    """Words of the question whose papers contain all facts, with as few other papers as possible.

    Returns:
        The rarest words if no choice contains all facts.
    """
    texts = problem.texts
    papers = {word: papers_with(word, texts) for word in words_of(problem.question)}
    rarest = sorted((word for word in papers if papers[word]), key=lambda word: len(papers[word]))
    sources = [{span.paper_id for span in fact.spans} for fact in problem.evidence]
    chosen = _best(
        rarest[:_MOST_CANDIDATES],
        lambda words: _cost(set().union(*(papers[word] for word in words)), sources),
    )
    return list(chosen or rarest[:_MOST_WORDS])


def _cost(papers: set[str], sources: Sequence[set[str]]) -> float:
    """Number of papers; infinite if they lack a source."""
    return len(papers) if all(source & papers for source in sources) else float("inf")


def papers_to_read(problem: Problem, words: Sequence[str], extra: int) -> list[str] | None:
    """Papers for children: those with evidence, and a few others with hits.

    Args:
        problem: the problem, with its gold.
        words: words of the search; a paper without a hit is not known to be promising.
        extra: most papers without evidence.

    Returns:
        Ids in the order of the papers; None for all papers, where hits miss some evidence.
    """
    texts = problem.texts
    hits = [papers_with(word, texts) for word in words]
    promising = set().union(*hits)
    sources = [{span.paper_id for span in fact.spans} for fact in problem.evidence]
    if not all(source & promising for source in sources):
        return None
    others = sorted(
        promising - problem.gold_papers,
        key=lambda paper_id: (-sum(paper_id in hit for hit in hits), paper_id),
    )
    chosen = promising & problem.gold_papers | set(others[:extra])
    return [paper.paper_id for paper in problem.papers if paper.paper_id in chosen]


def gold_in(problem: Problem, paper_id: str) -> list[Fact]:
    """Facts with evidence in a paper, each with its spans there."""
    there = (
        (fact, tuple(span for span in fact.spans if span.paper_id == paper_id))
        for fact in problem.evidence
    )
    return [fact.model_copy(update={"spans": spans}) for fact, spans in there if spans]


def is_shown(span: Span, shown: Iterable[str]) -> bool:
    """Whether the whole span occurs in one of the texts."""
    return any(span.text in text for text in shown)


def unseen(facts: Iterable[Fact], shown: Collection[str]) -> list[Fact]:
    """Facts of which no span was shown."""
    return [fact for fact in facts if not any(is_shown(span, shown) for span in fact.spans)]


def look_words(
    text: str, missing: Sequence[Fact], frame_text: str, window: int, chars: int
) -> list[str] | None:
    """Words around which a look at a text shows most of the missing facts.

    Args:
        text: the paper.
        missing: facts that were not shown, with their spans in the paper.
        frame_text: everything that the frame has read; the words come from it.
        window: characters that `search` adds on each side of a hit.
        chars: characters of the look.

    Returns:
        One to three words; None if no look shows a missing fact.
    """
    heard = set(words_of(frame_text))
    near: set[str] = set()
    for span in (span for fact in missing for span in fact.spans):
        near.update(words_of(text[max(0, span.start - window) : span.end + window]))
    rarest = sorted(near & heard, key=lambda word: (text.count(word), word))[:_MOST_CANDIDATES]
    passages = {word: snippets(text, occurrences(text, word), window, window) for word in rarest}

    def cost(words: Sequence[str]) -> float:
        printed = "\n".join(dict.fromkeys(passage for word in words for passage in passages[word]))
        left = len(unseen(missing, [printed[:chars]]))
        # First of all as many facts as possible, then as little text as possible.
        return left * 1e9 + len(printed) if left < len(missing) else float("inf")

    return _best(rarest, cost)


def rarest_words(text: str, task: str) -> list[str]:
    """The two rarest words of a task that a text contains."""
    candidates = (word for word in words_of(task) if word in text)
    return sorted(candidates, key=lambda word: (text.count(word), word))[:2]


def edges(span: Span, text: str) -> int | None:
    """Characters of a long span's first and last words by which `extract` finds it; else None."""
    folded = text.lower()
    if len(span.text) < _LONG or len(folded) != len(text):
        return None
    first, last = span.text[:_EDGE].lower(), span.text[-_EDGE:].lower()
    start = folded.find(first)
    match = start == span.start and folded.find(last, start) + _EDGE == span.end
    return _EDGE if match else None


def _best(words: Sequence[str], cost: Cost) -> list[str] | None:
    """The cheapest combination of at most three words; None if each has an infinite cost."""
    counts = range(1, _MOST_WORDS + 1)
    tried = ((cost(some), n, some) for n in counts for some in combinations(words, n))
    least = min(tried, key=lambda entry: entry[:2], default=None)
    return None if least is None or least[0] == float("inf") else list(least[2])
