"""Splits by group, and the proof that nothing leaks from one split into another.

Two problems belong together when they share a paper or two papers that have most sentences in
common, when their questions are nearly the same, or when their rows say the same group. What
belongs together, over any number of steps, is one group, and a group falls into one split.
Neighbours: `tasks/prepare.py` deals out candidates, `tasks/validate.py` proves `leaks` empty.
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
from env.problems.settings import SplitSettings
from env.problems.source import Candidate, Rejected

SPLITS: tuple[Split, ...] = get_args(Split)
_ORDER = {split: number for number, split in enumerate(SPLITS)}
_SENTENCE_CHARS = 20
"""Shorter sentences ("Introduction.", "See Table 2.") stand in unrelated papers."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*\n\s*")
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_FIRST_LETTER = 0x10000
"""Above all surrogates."""
_CHUNK = 512
"""Questions compared with all others at a time."""

Kind = Literal["paper", "question", "group"]


@dataclass(frozen=True)
class Leak:
    """Two problems of different splits that have something in common."""

    kind: Kind
    first: str
    """Id of the problem in the earlier split: train before validation before test."""
    second: str
    similarity: float
    """Share of common sentences or of common words; 1 for the same group."""


@dataclass(frozen=True)
class _Pair:
    """Two problems, by their places, that belong together."""

    kind: Kind
    one: int
    two: int
    similarity: float


def leaks(problems: Sequence[Problem], settings: SplitSettings) -> list[Leak]:
    """What the splits of these problems have in common; empty is the proof that nothing leaks.

    Args:
        problems: of all splits.
        settings: from when papers and questions are the same.

    Returns:
        For each problem, kind and earlier split the problem of that split it is most similar to.
    """
    splits = [_ORDER[problem.split] for problem in problems]
    worst: dict[tuple[Kind, int, int], tuple[float, int]] = {}
    for pair in _pairs(problems, settings, splits):
        one, two = sorted((pair.one, pair.two), key=lambda i: splits[i])
        if splits[one] == splits[two]:
            continue
        key = (pair.kind, two, splits[one])
        # Of equally similar ones the earliest, so that every process names the same.
        worst[key] = max(worst.get(key, (0.0, -one)), (pair.similarity, -one))
    return [
        Leak(kind, problems[-one].problem_id, problems[two].problem_id, round(similarity, 4))
        for (kind, two, _), (similarity, one) in sorted(worst.items(), key=lambda item: item[0][1:])
    ]


def groups(problems: Sequence[Problem], settings: SplitSettings) -> list[int]:
    """The group of each problem, as the place of its first member."""
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
    """The candidates in their groups and splits, and those that would leak.

    Splits are the rows' own when all rows say one; a row that has something in common with an
    earlier split is then rejected. Otherwise groups fall into splits by a hash of their
    smallest problem_id, so that a further row moves no other group (`_fall` names exceptions).
    A group with a question that was trained on before trains: its own further row may move it.

    Args:
        candidates: with distinct ids.
        settings: shares, seed, and from when papers and questions are the same.

    Raises:
        SourceError: the questions trained on before cannot be read.
    """
    known = trained_before(settings)
    kept, rejected = list(candidates), list[Rejected]()
    given = [candidate for candidate in kept if candidate.split is not None]
    if given:
        rejected = [_says_none(one, len(given)) for one in kept if one.split is None]
        kept = given
        for split in SPLITS[:-1]:
            leaking = _leaking(kept, settings, split)
            rejected += leaking.values()
            kept = [one for one in kept if one.problem.problem_id not in leaking]
    problems = [candidate.problem for candidate in kept]
    members: dict[int, list[str]] = defaultdict(list)
    places = groups(problems, settings)
    for place, problem in zip(places, problems, strict=True):
        members[place].append(problem.problem_id)
    names = {place: min(ids) for place, ids in members.items()}
    trained = {
        names[place]
        for place, problem in zip(places, problems, strict=True)
        if question_key(problem.question) in known
    }
    sizes = {names[place]: len(ids) for place, ids in members.items()}
    splits = {} if given else _fall(sizes, settings, trained)
    dealt = []
    for place, candidate in zip(places, kept, strict=True):
        name, problem = names[place], candidate.problem
        split = splits.get(name, problem.split)
        if name in trained and split != "train":
            rejected.append(_was_trained(candidate))
        else:
            dealt.append(problem.model_copy(update={"group_id": name, "split": split}))
    return dealt, rejected


def question_key(question: str) -> str:
    """A question's words, as 16 hex digits: the same after edits of its paper or punctuation."""
    words = " ".join(_WORD.findall(question.casefold()))
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def trained_before(settings: SplitSettings) -> frozenset[str]:
    """Keys of the questions that a model was trained on before.

    Raises:
        SourceError: the file that holds them cannot be read.
    """
    if settings.trained is None:
        return frozenset()
    try:
        return frozenset(json.loads(Path(settings.trained).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SourceError(
            f"prepare.splits.trained: {settings.trained} is no JSON list of questions ({error})"
        ) from None


def _was_trained(candidate: Candidate) -> Rejected:
    return Rejected(
        candidate.row,
        "split",
        f"is {candidate.split}, but a model that is gone on from was trained on its group",
        "move it to train, or start from another model (retrain.start: profile)",
    )


def _says_none(candidate: Candidate, others: int) -> Rejected:
    return Rejected(
        candidate.row,
        "split",
        f"is missing, while {others} other rows say theirs",
        "write train, validation or test in every row, or leave it out of all",
    )


def _leaking(
    candidates: Sequence[Candidate], settings: SplitSettings, split: Split
) -> dict[str, Rejected]:
    """By problem_id, the rows that have something in common with this earlier split."""
    by_id = {candidate.problem.problem_id: candidate for candidate in candidates}
    found: dict[str, Rejected] = {}
    for leak in leaks([candidate.problem for candidate in candidates], settings):
        first, second = by_id[leak.first], by_id[leak.second]
        if first.split != split or leak.second in found:
            continue
        what = {
            "paper": f"shares a paper ({leak.similarity:.0%} of its sentences)",
            "question": f"asks the same question ({leak.similarity:.0%})",
            "group": "shares the group_id",
        }[leak.kind]
        found[leak.second] = Rejected(
            second.row,
            "split",
            f"is {second.split}, but the row {what} with {first.row}, which is {split}",
            f"move it to {split}, or leave the splits out of all rows",
        )
    return found


def _fall(sizes: dict[str, int], settings: SplitSettings, trained: set[str]) -> dict[str, Split]:
    """A split for each group, given how many problems it has.

    The hash alone decides, but for three exceptions: a group that was trained on before trains,
    so does one larger than twice the share of its split, and a split that stays empty takes the
    group that lies nearest to it.
    """
    total = sum(sizes.values())
    at = {name: _position(f"{settings.seed}/{name}") for name in sizes}
    shares: dict[Split, float] = {"validation": settings.validation, "test": settings.test}
    starts: dict[Split, float] = {"validation": 0.0, "test": settings.validation}
    found: dict[str, Split] = {}
    for name, size in sizes.items():
        found[name] = "train"
        for split, share in shares.items():
            if starts[split] <= at[name] < starts[split] + share and (
                size <= max(1.0, 2 * share * total) and name not in trained
            ):
                found[name] = split
    free = {name: size for name, size in sizes.items() if name not in trained}
    if len(sizes) >= len(SPLITS):
        for split in SPLITS:
            _fill(found, free, at, split, starts.get(split, settings.validation + settings.test))
    return found


def _fill(
    found: dict[str, Split],
    sizes: dict[str, int],
    at: dict[str, float],
    split: Split,
    start: float,
) -> None:
    """Give an empty split one of these groups: a small one, of a split that has more than one."""
    counts = Counter(found.values())
    spare = [name for name in sizes if counts[found[name]] > 1]
    if counts[split] or not spare:
        return
    nearest = min(spare, key=lambda name: (sizes[name], abs(at[name] - start), name))
    found[nearest] = split


def _position(key: str) -> float:
    """A place in [0, 1) that depends on the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def _pairs(
    problems: Sequence[Problem], settings: SplitSettings, splits: Sequence[int] | None = None
) -> Iterator[_Pair]:
    """Enough pairs to connect all that belongs together.

    Args:
        problems: to be compared.
        settings: from when papers and questions are the same.
        splits: of each problem, when pairs of different splits are what is asked for: then
            the pair of each problem with its most similar one of each other split is among them.
    """
    yield from _same_group(problems, splits)
    yield from _same_papers(problems, settings.similar_papers, splits)
    yield from _same_questions(problems, settings.similar_questions, splits)


def _chain(
    kind: Kind, members: Iterable[int], similarity: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    """Members that all belong together, connected by few pairs: to the first one of each split."""
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


def _same_group(problems: Sequence[Problem], splits: Sequence[int] | None) -> Iterator[_Pair]:
    members: dict[str, list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        members[problem.group_id].append(i)
    for group in members.values():
        yield from _chain("group", group, 1.0, splits)


def sentences(text: str) -> frozenset[int]:
    """What two papers are compared by: hashes of their sentences, without the shortest.

    Hashes, since thousands of long papers are compared at once; two of them that are equal by
    chance (64 bits) change no share by more than one sentence.
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
    for group in members:
        yield from _chain("paper", group, 1.0, splits)
    in_splits = [{splits[i] for i in group} for group in members] if splits else None
    for one, two, similarity in _similar([sentences(text) for text in holders], least, in_splits):
        # Each holder of one paper with a holder of the other, and the other way round.
        for here, there in ((members[one], members[two]), (members[two], members[one])):
            anchors = {splits[i] if splits else 0: i for i in reversed(here)}
            for anchor in anchors.values():
                for i in there:
                    if i != anchor:
                        yield _Pair("paper", anchor, i, similarity)


def _similar(
    sets: Sequence[frozenset[int]], least: float, in_splits: Sequence[set[int]] | None
) -> Iterator[tuple[int, int, float]]:
    """Pairs of sets that have at least this share of the smaller one in common.

    No pair is missed: the smaller set of such a pair has so many members in common with the
    other that one of its rarest `n - ceil(least n) + 1` is among them, and only those are
    looked up.
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
    """What decides that two questions ask for different things: their names and numbers, sorted.

    Words with a capital or a digit; the first word has its capital from the sentence.
    """
    words = enumerate(_WORD.findall(question))
    return tuple(sorted(w for i, w in words if _DIGIT.search(w) or (i and w != w.lower())))


def _same_questions(
    problems: Sequence[Problem], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    """Questions that name the same things, in nearly the same words."""
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

    # A character for each word: `ratio` then counts words.
    letters: dict[str, str] = {}
    holders: dict[str, list[int]] = defaultdict(list)
    for question, place in zip(questions, places, strict=True):
        words = sorted(_WORD.findall(question.casefold()))
        coded = (letters.setdefault(w, chr(_FIRST_LETTER + len(letters))) for w in words)
        holders["".join(coded)].append(place)
    for group in holders.values():
        yield from _chain("question", group, 1.0, splits)
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
