"""Assignment of collections to splits.

Problems that are linked (`tasks/data/links.py`) are one collection, and in one split.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from env.errors import SourceError
from env.problems.schema import SPLITS, Problem, Split
from tasks.data.links import collections, leaks
from tasks.data.settings import SplitSettings
from tasks.data.source import Candidate, Rejected

_WORD = re.compile(r"\w+")


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
        reason = f"is missing, but {len(given)} other rows set it"
        remedy = "write train, validation or test in every row, or leave it out of all"
        bare = [one for one in accepted if one.split is None]
        rejected = [Rejected(one.row, "split", reason, remedy) for one in bare]
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
