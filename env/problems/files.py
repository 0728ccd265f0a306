"""The source `files`: a user's own problems, as JSONL or Parquet; docs/own_data.md.

The papers stand in the rows, or they are the documents of a folder. Every broken row is rejected
alone, by its place, with what to mend; a file that cannot be read at all is a `SourceError`.
Neighbours: `tables.py` reads rows, `row_schema.py` types them, `documents.py` reads the folder,
`drafts.py` locates the quotes, `splits.py` deals out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os.path import normpath
from pathlib import Path

from env.problems import tables
from env.problems.align import Located, Missing, Quotes
from env.problems.documents import Documents
from env.problems.drafts import Draft, Outcome, Place, complete
from env.problems.row_schema import AlternativesRow, PaperRow, QuoteRow, Row, parse
from env.problems.schema import Paper
from env.problems.settings import AlignSettings, FilesSettings, SplitSettings
from env.problems.source import Bounds, Candidate, Found, Progress, Rejected, distinct
from env.problems.splits import deal


def read(
    settings: FilesSettings,
    align: AlignSettings,
    splits: SplitSettings,
    bounds: Bounds,
    progress: Progress | None = None,
) -> Found:
    """All problems of the file, dealt to their splits, and every row that is none.

    Raises:
        SourceError: the file or the folder cannot be read at all.
    """
    documents = None
    if settings.documents is not None:
        folder = Path(settings.documents)
        documents = Documents(folder, bounds.max_text_chars, settings.max_mb)
    outcomes = []
    for number, (row, data) in enumerate(tables.read(Path(settings.path), settings.max_mb), 1):
        draft = data if isinstance(data, Rejected) else _draft(row, data, documents)
        if isinstance(draft, Draft):
            outcomes.append(complete(draft, bounds, align.min_similarity))
        else:
            faults = [draft] if isinstance(draft, Rejected) else draft
            outcomes.append(Outcome(row, faults=faults))
        if progress is not None:
            progress(number)
    return gather(outcomes, splits, _left_out(documents))


def gather(
    outcomes: Sequence[Outcome], splits: SplitSettings, left_out: Sequence[Rejected] = ()
) -> Found:
    """What became of all rows: the problems in their splits, and all faults in order."""
    candidates: list[Candidate] = []
    rejected: list[Rejected] = []
    quotes: list[Located | Missing] = []
    for outcome in outcomes:
        rejected += outcome.faults
        quotes += outcome.quotes
        candidates += [outcome.candidate] if outcome.candidate else []
    kept, repeated = distinct(candidates)
    problems, leaking = deal(kept, splits)
    order = {outcome.row: place for place, outcome in enumerate(outcomes)}
    rejected = sorted([*rejected, *repeated, *leaking], key=lambda fault: order[fault.row])
    return Found(problems, rejected, list(left_out), Quotes.count(quotes))


def _draft(row: str, data: object, documents: Documents | None) -> Draft | list[Rejected]:
    """The row with its papers at hand, or its faults."""
    parsed = parse(row, data)
    if isinstance(parsed, list):
        return parsed
    papers, faults = _inline(row, parsed) if documents is None else _from(row, parsed, documents)
    if faults:
        return faults
    return Draft(
        row=row,
        question=parsed.question,
        papers=papers,
        papers_field="papers" if documents is None else "documents",
        facts=[list(_places(fact, f"evidence[{i}]")) for i, fact in enumerate(parsed.evidence)],
        problem_id=parsed.problem_id,
        group_id=parsed.group_id,
        split=parsed.split,
        difficulty=parsed.difficulty,
    )


def _inline(row: str, parsed: Row) -> tuple[list[Paper], list[Rejected]]:
    faults = []
    if parsed.documents is not None:
        remedy = "say which folder holds them: --documents DIR, or prepare.files.documents"
        faults.append(Rejected(row, "documents", "no folder of documents is named", remedy))
    if parsed.papers is None:
        remedy = (
            'write "papers": [{"paper_id": "...", "text": "..."}], or name a folder of documents'
        )
        faults.append(Rejected(row, "papers", "is missing", remedy))
    return [_paper(paper) for paper in parsed.papers or ()], faults


def _paper(paper: PaperRow) -> Paper:
    return Paper(
        paper_id=paper.paper_id,
        title=paper.title or "",
        abstract=paper.abstract or "",
        text=paper.text,
    )


def _from(row: str, parsed: Row, documents: Documents) -> tuple[list[Paper], list[Rejected]]:
    """The documents that a row names, by file or by folder, or all that can be read."""
    if parsed.papers is not None:
        remedy = "delete `papers`, or check without a folder of documents"
        fault = Rejected(row, "papers", "stands beside a folder of documents", remedy)
        return [], [fault]
    named = parsed.documents is not None
    papers: list[Paper] = []
    faults: list[Rejected] = []
    for i, name in enumerate(parsed.documents or documents.names()):
        inside = [documents.get(one) for one in documents.within(name)]
        papers += [one for one in inside if isinstance(one, Paper)]
        if inside:
            continue
        found = documents.get(name)
        if isinstance(found, Paper):
            papers.append(found)
        elif named:
            reason = f"{name!r}: {found.reason}"
            faults.append(Rejected(row, f"documents[{i}]", reason, found.remedy))
    if not named:
        faults += _unreadable_gold(row, parsed, documents)
        if not papers:
            reason = f"the folder {documents.folder} holds no document that can be read"
            faults.append(Rejected(row, "documents", reason, "put .md, .txt, .rst or .pdf there"))
    return papers, faults


def _unreadable_gold(row: str, parsed: Row, documents: Documents) -> list[Rejected]:
    """The quoted documents that the folder has not, or has and nobody can read."""
    faults = []
    for i, fact in enumerate(parsed.evidence):
        for place in _places(fact, f"evidence[{i}]"):
            found = documents.get(place.paper_id)
            if isinstance(found, Rejected):
                reason = f"{place.paper_id!r}: {found.reason}"
                faults.append(Rejected(row, place.field, reason, found.remedy))
    return faults


def _places(fact: QuoteRow | AlternativesRow, field: str) -> Iterable[Place]:
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


def _left_out(documents: Documents | None) -> list[Rejected]:
    if documents is None:
        return []
    found = [documents.get(name) for name in documents.names()]
    return [one for one in found if isinstance(one, Rejected)]
