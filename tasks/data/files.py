"""The source `files`: a user's own problems, as JSONL; docs/own_data.md.

The papers are in the rows, or they are the documents of a folder. Beside them, or alone, the
headings of a folder are questions (`headings.py`). Each broken row is rejected on
its own, with its place and a remedy; a file that cannot be read at all is a `SourceError`.
`tables.py` reads rows, `row_schema.py` types them, `documents.py` reads the folder, `drafts.py`
locates the quotes and assigns splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from itertools import chain
from os.path import normpath
from pathlib import Path

from env.errors import SourceError
from env.problems.schema import Paper
from tasks.data import headings, tables
from tasks.data.documents import READABLE, Documents
from tasks.data.drafts import Place, ProblemDraft, complete_all
from tasks.data.row_schema import AlternativesRow, QuoteRow, UserRow, parse
from tasks.data.settings import FilesSettings, SplitSettings
from tasks.data.source import Found, OnProgress, ProblemBounds, Rejected

_Drafted = tuple[str, ProblemDraft | list[Rejected]]
"""Name of a row, and what it became."""


def read_problem_file(
    settings: FilesSettings,
    splits: SplitSettings,
    bounds: ProblemBounds,
    progress: OnProgress | None = None,
) -> Found:
    """Problems of the file in their splits, and all rejected rows.

    Raises:
        SourceError: the file or the folder cannot be read at all.
    """
    folders: dict[str | None, Documents] = {
        name: Documents(Path(name), bounds.max_text_chars)
        for name in (settings.documents, settings.headings)
        if name is not None
    }
    for folder in folders.values():
        if not _texts(folder):
            first = f" ({fault})" if (fault := next(iter(_left_out(folder)), None)) else ""
            raise SourceError(
                f"{folder.folder}: contains no readable document{first}. Put "
                f"{', '.join(READABLE)} there, or name another folder."
            )
    documents, titled = folders.get(settings.documents), folders.get(settings.headings)
    asked: Iterable[_Drafted] = ()
    if settings.path is not None:
        rows = tables.read_rows(Path(settings.path))
        asked = ((row, _draft(row, data, documents)) for row, data in rows)
    made: Iterable[_Drafted] = ()
    if titled is not None:
        tested = list(asked)
        quoted = _quoted(draft for _, draft in tested)
        trained = _texts(titled) - quoted
        asked = (_for_test(one, trained) for one in tested)
        made = headings.drafts(titled, splits, bounds, settings.path is None, quoted)
    problems = complete_all(chain(asked, made), splits, bounds, progress)
    left_out = [fault for folder in folders.values() for fault in _left_out(folder)]
    return replace(problems, left_out=left_out)


def _quoted(drafts: Iterable[ProblemDraft | list[Rejected]]) -> set[str]:
    """Texts of the papers that questions quote."""
    asked = [draft for draft in drafts if isinstance(draft, ProblemDraft)]
    named = [{place.paper_id for fact in draft.facts for place in fact} for draft in asked]
    return {
        paper.text
        for draft, ids in zip(asked, named, strict=True)
        for paper in draft.papers
        if paper.paper_id in ids
    }


def _texts(documents: Documents) -> set[str]:
    outcomes = map(documents.get, documents.names())
    return {one.text for one in outcomes if isinstance(one, Paper)}


def _for_test(drafted: _Drafted, trained: Set[str]) -> _Drafted:
    """Questions of people beside headings are the test, without documents that are trained on."""
    row, draft = drafted
    if not isinstance(draft, ProblemDraft):
        return drafted
    papers = [paper for paper in draft.papers if paper.text not in trained]
    return row, replace(draft, split="test", papers=papers)


def _draft(row: str, data: object, documents: Documents | None) -> ProblemDraft | list[Rejected]:
    """The row with its papers, or its faults."""
    if isinstance(data, Rejected):
        return [data]
    parsed, faults = parse(row, data)
    if parsed is None:
        return faults
    papers, missing = (
        _inline(row, parsed) if documents is None else _from_folder(row, parsed, documents)
    )
    # Quotes of papers that are missing have no fault of their own.
    ids = {paper.paper_id for paper in papers}
    facts = [
        [one for one in _places(fact, f"evidence[{i}]") if not missing or one.paper_id in ids]
        for i, fact in enumerate(parsed.evidence)
    ]
    return ProblemDraft(
        row=row,
        question=parsed.question,
        papers=papers,
        papers_field="papers" if documents is None else "documents",
        facts=facts,
        faults=[*faults, *missing],
        problem_id=parsed.problem_id,
        collection_id=parsed.collection_id,
        split=parsed.split,
        difficulty=parsed.difficulty,
    )


def _inline(row: str, parsed: UserRow) -> tuple[list[Paper], list[Rejected]]:
    faults = []
    if parsed.documents is not None:
        remedy = "name the folder with --documents DIR or prepare.files.documents"
        faults.append(Rejected(row, "documents", "needs a folder of documents", remedy))
    elif parsed.papers is None:
        remedy = (
            'write "papers": [{"paper_id": "...", "text": "..."}], or name a folder of documents'
        )
        faults.append(Rejected(row, "papers", "is missing", remedy))
    return [row_paper.paper() for row_paper in parsed.papers or ()], faults


def _from_folder(
    row: str, parsed: UserRow, documents: Documents
) -> tuple[list[Paper], list[Rejected]]:
    """Documents that a row names, by file or folder; all readable ones if it names none."""
    if parsed.papers is not None:
        remedy = "delete `papers`, or check without a folder of documents"
        return [], [Rejected(row, "papers", "cannot be used with a folder of documents", remedy)]
    named = parsed.documents is not None
    papers: list[Paper] = []
    faults: list[Rejected] = []
    for i, name in enumerate(parsed.documents or documents.names()):
        # Looking through thousands of names for each of them would take minutes.
        inside = [documents.get(one) for one in documents.within(name)] if named else []
        papers += [one for one in inside if isinstance(one, Paper)]
        if inside:
            continue
        outcome = documents.get(name)
        if isinstance(outcome, Paper):
            papers.append(outcome)
        elif named:
            reason = f"{name!r}: {outcome.reason}"
            faults.append(Rejected(row, f"documents[{i}]", reason, outcome.remedy))
    if not named:
        faults += _unreadable_gold(row, parsed, documents)
    return papers, faults


def _unreadable_gold(row: str, parsed: UserRow, documents: Documents) -> list[Rejected]:
    """Faults of the quoted documents that are missing or unreadable."""
    faults = []
    for i, fact in enumerate(parsed.evidence):
        for place in _places(fact, f"evidence[{i}]"):
            outcome = documents.get(place.paper_id)
            if isinstance(outcome, Rejected):
                reason = f"{place.paper_id!r}: {outcome.reason}"
                faults.append(Rejected(row, place.field, reason, outcome.remedy))
    return faults


def _places(fact: QuoteRow | AlternativesRow, field: str) -> Iterator[Place]:
    if isinstance(fact, AlternativesRow):
        for i, one in enumerate(fact.alternatives):
            yield _place(one, f"{field}.alternatives[{i}]")
    else:
        yield _place(fact, field)


def _place(one: QuoteRow, field: str) -> Place:
    return Place(
        field=field,
        paper_id=one.paper_id if one.paper_id is not None else normpath(one.document or ""),
        quote=one.quote,
        start=one.start or 0,
        end=one.end or 0,
    )


def _left_out(documents: Documents) -> list[Rejected]:
    outcomes = [documents.get(name) for name in documents.names()]
    return [one for one in outcomes if isinstance(one, Rejected)]
