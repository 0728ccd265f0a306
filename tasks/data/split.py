"""Candidates become problems in splits: what is linked stays together.

Two problems are linked by a shared or similar paper, by nearly the same question, or by the
collection that their rows set. Problems linked over any number of steps are one collection, and in
one split. A leak is a link between problems of different splits; `tasks/validate.py` checks that
`leaks` finds none.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

from env.errors import SourceError
from env.problems.schema import SPLITS, Problem, Split
from tasks.data.rows import Candidate, Rejected
from tasks.data.settings import SplitSettings
from tasks.data.texts import WORD, position, question_key, sentences

SIMILAR_QUESTIONS = 90.0
"""Percent of common words from which questions with the same names and numbers are the same."""
_DIGIT = re.compile(r"\d")
_FIRST_LETTER = 0x10000
"""First code point for words, above all surrogates."""
_CHUNK = 512
"""Number of questions compared with all others at a time."""

LinkKind = Literal["paper", "question", "collection"]
_Link = tuple[LinkKind, int, int, float]
"""Kind, indices of two linked problems, and similarity."""


@dataclass(frozen=True)
class Leak:
    """Two problems of different splits that have something in common."""

    kind: LinkKind
    first: str
    """Id of the problem in the earlier split, in the order train, validation, test."""
    second: str
    similarity: float
    """Share of common sentences or words, 0 to 1; 1 for the same collection."""


# --- what belongs together ---


def leaks(problems: Sequence[Problem], settings: SplitSettings) -> list[Leak]:
    """Links between problems of different splits; empty if nothing leaks.

    Args:
        problems: problems of all splits.
        settings: similarities from which papers and questions count as the same.

    Returns:
        For each problem that leaks, kind and earlier split: the most similar linked problem.
        Of several with the same paper, question or collection, that of the earliest split.
    """
    problems = sorted(problems, key=lambda problem: SPLITS.index(problem.split))
    worst: dict[tuple[LinkKind, int, Split], tuple[float, int]] = {}
    for kind, *pair, similarity in _links(problems, settings):
        one, two = sorted(pair)
        if (split := problems[one].split) != problems[two].split:
            # The earliest of equally similar ones, so that every process names the same.
            worst[kind, two, split] = max(
                worst.get((kind, two, split), (0.0, -one)), (similarity, -one)
            )
    return [
        Leak(kind, problems[-one].problem_id, problems[two].problem_id, round(similarity, 4))
        for (kind, two, _), (similarity, one) in worst.items()
    ]


def collections(problems: Sequence[Problem], settings: SplitSettings) -> list[int]:
    """Collection of each problem, as the index of the collection's first member."""
    parents = list(range(len(problems)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = parents[parents[i]]
            i = parents[i]
        return i

    for _, *pair, _ in _links(problems, settings):
        one, two = sorted(map(root, pair))
        parents[two] = one
    return [root(i) for i in range(len(problems))]


def _links(problems: Sequence[Problem], settings: SplitSettings) -> Iterator[_Link]:
    """Links that connect every collection.

    Problems that share something are linked with the first of them. If the problems are in the
    order of their splits, each that shares something with another split has a link to the
    earliest one.
    """
    of_collection: dict[str, dict[int, None]] = defaultdict(dict)
    of_paper: dict[str, dict[int, None]] = defaultdict(dict)
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        of_collection[problem.collection_id][i] = None
        alike[names_in(problem.question)].append(i)
        for paper in problem.papers:
            of_paper[paper.text][i] = None
    for places in of_collection.values():
        yield from _joined("collection", places, places, 1.0)
    for places in of_paper.values():
        yield from _joined("paper", places, places, 1.0)
    holders = list(of_paper.values())
    for one, two, similarity in _similar([*map(sentences, of_paper)], settings.similar_papers):
        yield from _joined("paper", holders[one], holders[two], similarity)
        yield from _joined("paper", holders[two], holders[one], similarity)
    for members in alike.values():
        yield from _nearly_equal({i: problems[i].question for i in members})


def _joined(
    kind: LinkKind, some: Collection[int], others: Iterable[int], similarity: float
) -> Iterator[_Link]:
    """Links of the first problem with the others."""
    first = min(some)
    yield from ((kind, first, i, similarity) for i in others if i != first)


def _similar(sets: Sequence[frozenset[int]], least: float) -> Iterator[tuple[int, int, float]]:
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
            common = len(members & sets[other])
            if common >= needed:
                yield i, other, common / len(members)


def names_in(question: str) -> tuple[str, ...]:
    """Sorted names and numbers of a question; questions that differ in them are different.

    Names are words with a capital, except the first word of the sentence.
    """
    words = enumerate(WORD.findall(question))
    return tuple(sorted(w for i, w in words if _DIGIT.search(w) or (i and w != w.lower())))


def _nearly_equal(questions: Mapping[int, str]) -> Iterator[_Link]:
    """Links of questions with nearly the same words."""
    import numpy as np
    from rapidfuzz import fuzz, process

    # Each word becomes one character, so that `ratio` counts words.
    letters: dict[str, str] = {}
    coded: dict[str, list[int]] = defaultdict(list)
    for place, question in questions.items():
        words = sorted(WORD.findall(question.casefold()))
        code = (letters.setdefault(word, chr(_FIRST_LETTER + len(letters))) for word in words)
        coded["".join(code)].append(place)
    for places in coded.values():
        yield from _joined("question", places, places, 1.0)
    different = list(coded)
    for start in range(0, len(different), _CHUNK):
        chunk, rest = different[start : start + _CHUNK], different[start:]
        scores = process.cdist(
            chunk, rest, scorer=fuzz.ratio, score_cutoff=SIMILAR_QUESTIONS, dtype=np.float32
        )
        for row, column in zip(*np.nonzero(np.triu(scores, 1)), strict=True):
            one, two = coded[chunk[row]], coded[rest[column]]
            yield from _joined("question", one, two, float(scores[row, column]) / 100)
            yield from _joined("question", two, one, float(scores[row, column]) / 100)


# --- how collections fall ---


def deal(
    candidates: Iterable[Candidate], settings: SplitSettings
) -> tuple[list[Problem], list[Rejected]]:
    """Problems with their collections and splits, and faults of the rows that repeat or would leak.

    If rows set splits, these are kept; a row that is linked to an earlier split is then rejected.
    Otherwise a hash of its smallest problem_id assigns a collection, so that a new row does not
    move other collections (`_assign` documents the exceptions). Problems about one folder are a
    single collection: then the documents are split, with the questions that quote them, and a
    problem keeps the documents of its own split. A collection with a question that a model was
    trained on stays in train.

    Raises:
        SourceError: the list of trained questions cannot be read.
    """
    questions = trained_before(settings)
    accepted, rejected = _distinct(candidates)
    given = any(one.split for one in accepted)
    if given:
        accepted, leaking = _without_leaks(accepted, settings)
        rejected += leaking
    problems = [candidate.problem for candidate in accepted]
    # Where the splits are given, problems about one folder still are as many collections as they
    # have documents with evidence: intervals are over collections.
    places = collections([_evidence_only(one) for one in problems] if given else problems, settings)
    homes: dict[str, int] = {}
    if not given and len(set(places)) < len(SPLITS):
        places, homes = _by_document(problems, settings)
    names: dict[int, str] = {}
    for place, problem in zip(places, problems, strict=True):
        names[place] = min(names.get(place, problem.problem_id), problem.problem_id)
    sizes = Counter(names[place] for place in places)
    trained = {
        names[place]
        for place, problem in zip(places, problems, strict=True)
        if question_key(problem.question) in questions
    }
    splits: dict[str, Split] = {}
    if not given:
        splits = (_balance if homes else _assign)(sizes, settings, trained)
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
            continue
        papers = tuple(
            paper
            for paper in problem.papers
            if not homes or splits[names[homes[paper.text]]] == split
        )
        update = {"collection_id": name, "split": split, "papers": papers}
        dealt.append(problem.model_copy(update=update))
    return dealt, rejected


def _distinct(candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Rejected]]:
    """Candidates without repetitions, of which the first stays, and the faults of the others."""
    ids: dict[str, str] = {}
    contents: dict[tuple[str, frozenset[str]], str] = {}
    originals, rejected = list[Candidate](), list[Rejected]()
    for candidate in candidates:
        row, problem = candidate.row, candidate.problem
        content = (problem.question, frozenset(paper.text for paper in problem.papers))
        if content in contents:
            reason = f"repeats {contents[content]}: the same question about the same papers"
            fix = "delete one of the two rows, or merge their evidence"
            rejected.append(Rejected(row, "question", reason, fix))
        elif problem.problem_id in ids:
            reason = f"{problem.problem_id!r} is already used in {ids[problem.problem_id]}"
            fix = "give each row a different id, or none"
            rejected.append(Rejected(row, "problem_id", reason, fix))
        else:
            ids[problem.problem_id] = contents[content] = row
            originals.append(candidate)
    return originals, rejected


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
    papers = tuple(paper for paper in problem.papers if paper.paper_id in problem.gold_papers)
    return problem.model_copy(update={"papers": papers})


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


def _without_leaks(
    candidates: Sequence[Candidate], settings: SplitSettings
) -> tuple[list[Candidate], list[Rejected]]:
    """The rows that keep the split they set, and the faults of the others."""
    accepted = [one for one in candidates if one.split]
    reason = f"is missing, but {len(accepted)} other rows set it"
    remedy = "write train, validation or test in every row, or leave it out of all"
    rejected = [Rejected(one.row, "split", reason, remedy) for one in candidates if not one.split]
    for split in SPLITS[:-1]:  # a row that leaks from train takes nothing from validation
        by_id = {one.problem.problem_id: one for one in accepted}
        faults: dict[str, Rejected] = {}
        for leak in leaks([one.problem for one in accepted], settings):
            first, second = by_id[leak.first], by_id[leak.second]
            what = {
                "paper": f"shares a paper ({leak.similarity:.0%} of its sentences)",
                "question": f"asks the same question ({leak.similarity:.0%})",
                "collection": "shares the collection_id",
            }[leak.kind]
            if first.split == split:
                reason = f"is {second.split}, but the row {what} with {first.row}, which is {split}"
                remedy = f"move it to {split}, or leave the splits out of all rows"
                faults.setdefault(leak.second, Rejected(second.row, "split", reason, remedy))
        rejected += faults.values()
        accepted = [one for one in accepted if one.problem.problem_id not in faults]
    return accepted, rejected


def _assign(sizes: dict[str, int], settings: SplitSettings, trained: set[str]) -> dict[str, Split]:
    """Split of each collection.

    A hash decides, with three exceptions. A trained collection stays in train. A collection larger
    than twice the share of its split goes to train. An empty split takes a small collection, out
    of a split that has several.

    Args:
        sizes: number of problems of each collection.
        settings: shares and seed.
        trained: collections with a question that the base model was trained on.
    """
    total = sum(sizes.values())
    at = {name: position(f"{settings.seed}/{name}") for name in sizes}
    begins: dict[Split, float] = {
        "validation": 0.0,
        "test": settings.validation,
        "train": settings.validation + settings.test,
    }
    shares: dict[Split, float] = {"validation": settings.validation, "test": settings.test}
    splits: dict[str, Split] = dict.fromkeys(sizes, "train")
    for name, size in sizes.items():
        for split, share in shares.items():
            if begins[split] <= at[name] < begins[split] + share and (
                size <= max(1.0, 2 * share * total) and name not in trained
            ):
                splits[name] = split
    for split in SPLITS if len(sizes) >= len(SPLITS) else ():
        counts = Counter(splits.values())
        spare = [name for name in sizes if name not in trained and counts[splits[name]] > 1]
        if spare and not counts[split]:
            far = {name: abs(at[name] - begins[split]) for name in spare}
            splits[min(spare, key=lambda name: (sizes[name], far[name], name))] = split
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
