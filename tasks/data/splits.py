"""Assignment of collections to splits, and detection of leaks between splits.

Two problems are linked by a shared or similar paper, by nearly the same question, or by the
collection that their rows set. Problems linked over any number of steps are one
collection and are in one split. `tasks/validate.py` checks that `leaks` finds nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal, get_args

from env.errors import SourceError
from env.problems.schema import Problem, Split
from tasks.data.settings import SplitSettings
from tasks.data.source import Candidate, Rejected

SPLITS: tuple[Split, ...] = get_args(Split)
_ORDER = {split: number for number, split in enumerate(SPLITS)}
_SENTENCE_CHARS = 20
"""Shorter sentences ("Introduction.", "See Table 2.") occur in unrelated papers."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<!\s)\s*\n\s*")
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_FIRST_LETTER = 0x10000
"""First code point for words, above all surrogates."""
_CHUNK = 512
"""Number of questions compared with all others at a time."""

LinkKind = Literal["paper", "question", "collection"]


@dataclass(frozen=True)
class Leak:
    """Two problems of different splits that have something in common."""

    kind: LinkKind
    first: str
    """Id of the problem in the earlier split, in the order train, validation, test."""
    second: str
    similarity: float
    """Share of common sentences or words, 0 to 1; 1 for the same collection."""


@dataclass(frozen=True)
class _Pair:
    """Indices of two linked problems."""

    kind: LinkKind
    one: int
    two: int
    similarity: float


def leaks(problems: Sequence[Problem], settings: SplitSettings) -> list[Leak]:
    """Links between problems of different splits; empty if nothing leaks.

    Args:
        problems: problems of all splits.
        settings: similarities from which papers and questions count as the same.

    Returns:
        For each problem, kind and earlier split: the most similar problem of that split.
    """
    splits = [_ORDER[problem.split] for problem in problems]
    worst: dict[tuple[LinkKind, int, int], tuple[float, int]] = {}
    for pair in _pairs(problems, settings, splits):
        one, two = sorted((pair.one, pair.two), key=lambda i: splits[i])
        if splits[one] == splits[two]:
            continue
        key = (pair.kind, two, splits[one])
        # The earliest of equally similar ones, so that every process names the same.
        worst[key] = max(worst.get(key, (0.0, -one)), (pair.similarity, -one))
    return [
        Leak(kind, problems[-one].problem_id, problems[two].problem_id, round(similarity, 4))
        for (kind, two, _), (similarity, one) in sorted(worst.items(), key=lambda item: item[0][1:])
    ]


def collections(problems: Sequence[Problem], settings: SplitSettings) -> list[int]:
    """Collection of each problem, as the index of the collection's first member."""
    parents = list(range(len(problems)))
    for pair in _pairs(problems, settings):
        one, two = sorted((_root(parents, pair.one), _root(parents, pair.two)))
        parents[two] = one
    return [_root(parents, i) for i in range(len(problems))]


def _root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


def deal(
    candidates: Sequence[Candidate], settings: SplitSettings
) -> tuple[list[Problem], list[Rejected]]:
    """Problems with their collections and splits, and faults of the rows that would leak.

    If rows set splits, these are kept; a row that is linked to an earlier split is then rejected.
    Otherwise a hash of its smallest problem_id assigns a collection, so that a new row does not
    move other collections (`_assign` documents the exceptions). Problems about one folder are a
    single collection: then the documents are split, with the questions that quote them, and a
    problem keeps the documents of its own split. A collection with a question that a model was
    trained on stays in train.

    Args:
        candidates: candidates with distinct ids.
        settings: shares, seed and similarities.

    Raises:
        SourceError: the list of trained questions cannot be read.
    """
    questions = trained_before(settings)
    accepted, rejected = list(candidates), list[Rejected]()
    given = [candidate for candidate in accepted if candidate.split is not None]
    if given:
        rejected = [_without_split(one, len(given)) for one in accepted if one.split is None]
        accepted = given
        for split in SPLITS[:-1]:
            leaking = _leaking(accepted, settings, split)
            rejected += leaking.values()
            accepted = [one for one in accepted if one.problem.problem_id not in leaking]
    problems = [candidate.problem for candidate in accepted]
    members: dict[int, list[Problem]] = defaultdict(list)
    # Where the splits are given, problems about one folder still are as many collections as they
    # have documents with evidence: intervals are over collections.
    places = collections([_evidence_only(one) for one in problems] if given else problems, settings)
    homes: dict[str, int] = {}
    if not given and len(set(places)) < len(SPLITS):
        places, homes = _by_document(problems, settings)
    for place, problem in zip(places, problems, strict=True):
        members[place].append(problem)
    names = {place: min(one.problem_id for one in held) for place, held in members.items()}
    trained = {
        names[place]
        for place, held in members.items()
        if any(question_key(one.question) in questions for one in held)
    }
    sizes = {names[place]: len(held) for place, held in members.items()}
    assign = _balance if homes else _assign
    splits = {} if given else assign(sizes, settings, trained)
    unquoted = {place: question_key(text) for text, place in homes.items() if place not in names}
    splits |= _assign(dict.fromkeys(unquoted.values(), 1), settings, set())
    names |= unquoted
    dealt = []
    for place, candidate in zip(places, accepted, strict=True):
        name, problem = names[place], candidate.problem
        split = splits.get(name, problem.split)
        if name in trained and split != "train":
            reason = f"is {candidate.split}, but the base model was trained on its collection"
            remedy = "move it to train, or set retrain.start: profile"
            rejected.append(Rejected(candidate.row, "split", reason, remedy))
        else:
            papers = tuple(
                paper
                for paper in problem.papers
                if not homes or splits[names[homes[paper.text]]] == split
            )
            update = {"collection_id": name, "split": split, "papers": papers}
            dealt.append(problem.model_copy(update=update))
    return dealt, rejected


def _by_document(
    problems: Sequence[Problem], settings: SplitSettings
) -> tuple[list[int], dict[str, int]]:
    """Collection of each problem by its evidence alone, and that of each paper, by its text."""
    alone = [_evidence_only(one) for one in problems]
    texts = {paper.text: paper for problem in problems for paper in problem.papers}
    # A stand-in a paper, which links it to the problems that quote it, and to similar papers.
    stand_ins = [
        alone[0].model_copy(update={"papers": (paper,), "question": key, "collection_id": key})
        for key, paper in ((question_key(text), paper) for text, paper in texts.items())
    ]
    places = collections([*alone, *stand_ins], settings)
    return places[: len(alone)], dict(zip(texts, places[len(alone) :], strict=True))


def _evidence_only(problem: Problem) -> Problem:
    gold = problem.gold_papers
    papers = tuple(paper for paper in problem.papers if paper.paper_id in gold)
    return problem.model_copy(update={"papers": papers})


def question_key(question: str) -> str:
    """Hash of a question's words, 16 hex digits; punctuation and papers do not affect it."""
    words = " ".join(_WORD.findall(question.casefold()))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def trained_before(settings: SplitSettings) -> frozenset[str]:
    """Keys of the questions that the base model was trained on.

    Raises:
        SourceError: the file cannot be read.
    """
    if settings.trained is None:
        return frozenset()
    try:
        return frozenset(json.loads(Path(settings.trained).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SourceError(
            f"{settings.trained} is not a JSON list of questions ({error}). "
            "Correct prepare.splits.trained."
        ) from None


def _without_split(candidate: Candidate, others: int) -> Rejected:
    return Rejected(
        candidate.row,
        "split",
        f"is missing, but {others} other rows set it",
        "write train, validation or test in every row, or leave it out of all",
    )


def _leaking(
    candidates: Sequence[Candidate], settings: SplitSettings, split: Split
) -> dict[str, Rejected]:
    """Faults of the rows that are linked to this earlier split, by problem_id."""
    by_id = {candidate.problem.problem_id: candidate for candidate in candidates}
    faults: dict[str, Rejected] = {}
    for leak in leaks([candidate.problem for candidate in candidates], settings):
        first, second = by_id[leak.first], by_id[leak.second]
        if first.split != split or leak.second in faults:
            continue
        what = {
            "paper": f"shares a paper ({leak.similarity:.0%} of its sentences)",
            "question": f"asks the same question ({leak.similarity:.0%})",
            "collection": "shares the collection_id",
        }[leak.kind]
        faults[leak.second] = Rejected(
            second.row,
            "split",
            f"is {second.split}, but the row {what} with {first.row}, which is {split}",
            f"move it to {split}, or leave the splits out of all rows",
        )
    return faults


def _assign(sizes: dict[str, int], settings: SplitSettings, trained: set[str]) -> dict[str, Split]:
    """Split of each collection.

    A hash decides, with three exceptions. A trained collection stays in train. A collection larger
    than twice the share of its split goes to train. An empty split takes a small collection.

    Args:
        sizes: number of problems of each collection.
        settings: shares and seed.
        trained: collections with a question that the base model was trained on.
    """
    total = sum(sizes.values())
    at = {name: position(f"{settings.seed}/{name}") for name in sizes}
    shares: dict[Split, float] = {"validation": settings.validation, "test": settings.test}
    starts: dict[Split, float] = {"validation": 0.0, "test": settings.validation}
    splits: dict[str, Split] = {}
    for name, size in sizes.items():
        splits[name] = "train"
        for split, share in shares.items():
            if starts[split] <= at[name] < starts[split] + share and (
                size <= max(1.0, 2 * share * total) and name not in trained
            ):
                splits[name] = split
    free = {name: size for name, size in sizes.items() if name not in trained}
    if len(sizes) >= len(SPLITS):
        for split in SPLITS:
            _fill(splits, free, at, split, starts.get(split, settings.validation + settings.test))
    return splits


def _balance(sizes: dict[str, int], settings: SplitSettings, trained: set[str]) -> dict[str, Split]:
    """Split of each collection where they are few: the largest first, where most is missing."""
    shares = {"validation": settings.validation, "test": settings.test}
    shares["train"] = 1 - sum(shares.values())
    wanted = {split: max(shares[split], 0.01) * sum(sizes.values()) for split in SPLITS}
    missing, splits = dict(wanted), dict[str, Split]()
    for name in sorted(sizes, key=lambda name: (name not in trained, -sizes[name], name)):
        most = max(SPLITS, key=lambda split: missing[split] / wanted[split])
        splits[name] = "train" if name in trained else most
        missing[splits[name]] -= sizes[name]
    return splits


def _fill(
    splits: dict[str, Split],
    sizes: dict[str, int],
    at: dict[str, float],
    split: Split,
    start: float,
) -> None:
    """Move a small collection to an empty split, out of a split that has several."""
    counts = Counter(splits.values())
    spare = [name for name in sizes if counts[splits[name]] > 1]
    if counts[split] or not spare:
        return
    nearest = min(spare, key=lambda name: (sizes[name], abs(at[name] - start), name))
    splits[nearest] = split


def position(key: str) -> float:
    """A number in [0, 1) that depends only on the key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def _pairs(
    problems: Sequence[Problem], settings: SplitSettings, splits: Sequence[int] | None = None
) -> Iterator[_Pair]:
    """Linked pairs, enough to connect every collection.

    Args:
        problems: problems to compare.
        settings: similarities from which papers and questions count as the same.
        splits: split of each problem. If given, the pairs include each problem with its most
            similar one of each other split.
    """
    yield from _same_collection(problems, splits)
    yield from _same_papers(problems, settings.similar_papers, splits)
    yield from _same_questions(problems, settings.similar_questions, splits)


def _chain(
    kind: LinkKind, members: Iterable[int], similarity: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    """Few pairs that connect all members: each with the first member of each split."""
    firsts: dict[int, int] = {}
    rest: list[int] = []
    for i in members:
        if firsts.setdefault(splits[i] if splits else 0, i) != i:
            rest.append(i)
    anchors = list(firsts.values())
    for i in [*anchors, *rest]:
        for anchor in anchors:
            if anchor != i:
                yield _Pair(kind, anchor, i, similarity)


def _same_collection(problems: Sequence[Problem], splits: Sequence[int] | None) -> Iterator[_Pair]:
    members: dict[str, list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        members[problem.collection_id].append(i)
    for places in members.values():
        yield from _chain("collection", places, 1.0, splits)


def sentences(text: str) -> frozenset[int]:
    """Hashes of a paper's sentences of at least 20 characters; papers are compared by them.

    Hashes save memory, because thousands of long papers are compared at once. A collision of two
    64-bit hashes changes a share by at most one sentence.
    """
    parts = (" ".join(part.split()).casefold() for part in _SENTENCE_END.split(text))
    return frozenset(hash(part) for part in parts if len(part) >= _SENTENCE_CHARS)


def _same_papers(
    problems: Sequence[Problem], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    holders: dict[str, dict[int, None]] = defaultdict(dict)
    for i, problem in enumerate(problems):
        for paper in problem.papers:
            holders[paper.text][i] = None
    members = [list(one) for one in holders.values()]
    for places in members:
        yield from _chain("paper", places, 1.0, splits)
    in_splits = [{splits[i] for i in places} for places in members] if splits else None
    for one, two, similarity in _similar([sentences(text) for text in holders], least, in_splits):
        # Pair each holder of one paper with a holder of the other, in both directions.
        for here, there in ((members[one], members[two]), (members[two], members[one])):
            anchors = {splits[i] if splits else 0: i for i in reversed(here)}
            for anchor in anchors.values():
                for i in there:
                    if i != anchor:
                        yield _Pair("paper", anchor, i, similarity)


def _similar(
    sets: Sequence[frozenset[int]], least: float, in_splits: Sequence[set[int]] | None
) -> Iterator[tuple[int, int, float]]:
    """Pairs of sets that share at least this part of the smaller one, with the shared part.

    Only the rarest `n - ceil(least n) + 1` members of the smaller set are looked up. No pair is
    missed, because the other set contains at least one of them.
    """
    holders: dict[int, list[int]] = defaultdict(list)
    for i, members in enumerate(sets):
        for member in members:
            holders[member].append(i)
    for i, members in enumerate(sets):
        needed = ceil(least * len(members) - 1e-9)
        by_rarity = sorted(members, key=lambda member: len(holders[member]))
        candidates = {
            other
            for member in by_rarity[: len(members) - needed + 1]
            for other in holders[member]
            if (len(sets[other]), other) > (len(members), i)
        }
        for other in candidates:
            if in_splits and len(in_splits[i] | in_splits[other]) == 1:
                continue
            common = len(members & sets[other])
            if common >= needed:
                yield i, other, common / len(members)


def named(question: str) -> tuple[str, ...]:
    """Sorted names and numbers of a question; questions that differ in them are different.

    Names are words with a capital, except the first word of the sentence.
    """
    words = enumerate(_WORD.findall(question))
    return tuple(sorted(w for i, w in words if _DIGIT.search(w) or (i and w != w.lower())))


def _same_questions(
    problems: Sequence[Problem], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    """Pairs of questions with the same names and numbers and nearly the same words."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        alike[named(problem.question)].append(i)
    for members in alike.values():
        yield from _nearly_equal([problems[i].question for i in members], members, least, splits)


def _nearly_equal(
    questions: Sequence[str], places: Sequence[int], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    import numpy as np
    from rapidfuzz import fuzz, process

    # Each word becomes one character, so that `ratio` counts words.
    letters: dict[str, str] = {}
    holders: dict[str, list[int]] = defaultdict(list)
    for question, place in zip(questions, places, strict=True):
        words = sorted(_WORD.findall(question.casefold()))
        coded = (letters.setdefault(w, chr(_FIRST_LETTER + len(letters))) for w in words)
        holders["".join(coded)].append(place)
    for places in holders.values():
        yield from _chain("question", places, 1.0, splits)
    different = list(holders)
    for start in range(0, len(different), _CHUNK):
        chunk = different[start : start + _CHUNK]
        scores = process.cdist(
            chunk, different[start:], scorer=fuzz.ratio, score_cutoff=least, dtype=np.float32
        )
        for row, column in zip(*np.nonzero(scores), strict=True):
            if column <= row:
                continue
            for i in holders[chunk[row]]:
                for j in holders[different[start + column]]:
                    yield _Pair("question", i, j, float(scores[row, column]) / 100)
