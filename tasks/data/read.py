"""The source `files`: a user's own problems, as JSONL, become drafts; docs/own_data.md.

The papers are in the rows, or they are the documents of a folder. Beside them, or alone, the
headings of a folder are questions (`headings.py`). pydantic checks the types of a row, and each of
its errors becomes a `Rejected`, with its place and a remedy. A file that cannot be read at all is a
`SourceError`.
"""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from env.errors import SourceError
from env.problems.schema import Level, Paper, Split
from tasks.data import headings
from tasks.data.documents import MAX_MB, READABLE, Documents, document_id
from tasks.data.rows import Draft, Place, ProblemBounds, Rejected, RowFault, did_you_mean
from tasks.data.settings import FilesSettings, SplitSettings

WHOLE_ROW = "(whole row)"
_HOW = "docs/own_data.md"


# --- the schema of a row ---


def _fault(reason: str, remedy: str | None = None) -> PydanticCustomError:
    # Braces in the message itself would be read as a template.
    return PydanticCustomError("row", "{reason}", {"reason": reason, "remedy": remedy})


def _clean(text: str) -> str:
    if "\0" in text:
        raise _fault("contains a NUL character", "delete the \\u0000 in it")
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = "contains a lone surrogate, which is not a character"
        raise _fault(reason, "delete the \\ud8.. escape in it") from None
    return text


def _filled(text: str) -> str:
    if not text.strip():
        raise _fault("contains only white space" if text else "is empty text")
    return _clean(text)


Text = Annotated[str, AfterValidator(_clean)]
Filled = Annotated[str, AfterValidator(_filled)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PaperRow(_Part):
    """A paper whose text is in the row."""

    paper_id: Filled
    text: Filled
    title: Text | None = None
    abstract: Text | None = None

    def paper(self) -> Paper:
        """The paper; a missing title or abstract is empty."""
        title, abstract = self.title or "", self.abstract or ""
        return Paper(paper_id=self.paper_id, title=title, abstract=abstract, text=self.text)


class QuoteRow(_Part):
    """Location of a fact: a quote or characters of a paper or document."""

    paper_id: Filled | None = None
    document: Filled | None = None
    quote: Filled | None = None
    start: int | None = Field(None, ge=0)
    end: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Refuse a row that doesn't name one place in one way."""
        if (self.paper_id is None) == (self.document is None):
            reason = "names no paper" if self.paper_id is None else "names a paper and a document"
            raise _fault(reason, 'write either "paper_id" or "document"')
        if (self.start is None) != (self.end is None):
            raise _fault("has only one of start and end", "write both, or a quote")
        if (self.quote is None) == (self.start is None):
            both = "has a quote and also start and end"
            reason = both if self.quote else "has neither a quote nor start and end"
            raise _fault(reason, 'write either "quote", or "start" and "end"')
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise _fault(
                f"start {self.start} is not before end {self.end}",
                "count characters from 0; end is one past the last",
            )

    def places(self, field: str) -> list[Place]:
        """The place, or all that are right."""
        paper_id = self.paper_id if self.paper_id is not None else document_id(self.document or "")
        return [Place(field, paper_id, self.quote, self.start or 0, self.end or 0)]


class FactRow(QuoteRow):
    """A fact at one place, or at several, any of which is right."""

    alternatives: Annotated[list[QuoteRow], Field(min_length=1)] | None = None

    def check(self) -> None:
        """Refuse a row that has places and alternatives, or a place that isn't one."""
        if self.alternatives is None:
            super().check()
        elif self.model_fields_set != {"alternatives"}:
            reason = "has alternatives and other keys"
            raise _fault(reason, 'move all places to "alternatives", or delete it')

    def places(self, field: str) -> list[Place]:
        """The place, or all that are right."""
        if self.alternatives is None:
            return super().places(field)
        each = enumerate(self.alternatives)
        return [place for i, one in each for place in one.places(f"{field}.alternatives[{i}]")]


class UserRow(_Part):
    """A problem as a user writes it."""

    question: Filled
    papers: Annotated[list[PaperRow], Field(min_length=1)] | None = None
    documents: Annotated[list[Filled], Field(min_length=1)] | None = None
    evidence: Annotated[list[FactRow], Field(min_length=1)]
    problem_id: Filled | None = None
    collection_id: Filled | None = None
    split: Split | None = None
    difficulty: Level | None = None


_MODELS: dict[str, type[BaseModel]] = {
    "": UserRow,
    "papers": PaperRow,
    "evidence": FactRow,
    "alternatives": QuoteRow,
}
"""Model of the objects in each list of a row."""
_REMEDIES = {
    "": f'write {{"question": ...}}, see {_HOW}',
    "question": 'write the question as text: "question": "..."',
    "papers": 'write "papers": [{"paper_id": "...", "text": "..."}]',
    "documents": 'write "documents": ["a.md", "b.pdf"], paths within the folder',
    "evidence": 'write "evidence": [{"document": "...", "quote": "..."}] (or "paper_id")',
    "alternatives": 'write "alternatives": [{"document": "...", "quote": "..."}, ...]',
    "paper_id": 'write the id of the paper as text: "paper_id": "..."',
    "document": 'write its path within the folder: "document": "..."',
    "text": 'write the text of the paper: "text": "..."',
    "quote": 'quote the document: "quote": "..."',
    "start": "count characters from 0, in whole numbers",
    "end": "count characters from 0, in whole numbers; end is one past the last",
    "problem_id": "write text, or leave it out: the id is then a hash of the row",
    "split": "write train, validation or test in every row, or leave it out of all",
    "difficulty": "write easy, medium or hard, or leave it out",
}
_EXPECTED = {
    "string_type": "text",
    "list_type": "a list",
    "model_type": "an object",
    "int_type": "a whole number",
}


def faults(row: str, error: ValidationError) -> list[Rejected]:
    """Faults of a row that a ValidationError reports."""
    rejected = []
    for item in error.errors(include_url=False):
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
        rejected.append(Rejected(row, path.removeprefix(".") or WHOLE_ROW, *_describe(item)))
    return rejected


def _describe(item: ErrorDetails) -> tuple[str, str]:
    """Reason and remedy of an error."""
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    names = ["", *(part for part in item["loc"] if isinstance(part, str))]
    remedy = context.get("remedy") or _REMEDIES.get(names[-1], f"see {_HOW}")
    if kind == "missing":
        return "is missing", remedy
    if kind == "extra_forbidden":
        keys = _MODELS[names[-2]].model_fields
        if meant := did_you_mean(names[-1], keys):
            return f"unknown key; did you mean {meant!r}?", f"rename it to {meant!r}"
        return "unknown key", f"delete it; valid keys are {', '.join(keys)}"
    if kind == "literal_error":
        meant = did_you_mean(str(value), context["expected"].replace("'", "").split(", "))
        return f"is {_shown(value)}" + (f"; did you mean {meant!r}?" if meant else ""), remedy
    if kind == "too_short":
        return "is an empty list", remedy
    if kind == "greater_than_equal":
        return f"is {value}, below {context['ge']}", remedy
    if kind in _EXPECTED:
        return f"is {_shown(value)}, not {_EXPECTED[kind]}", remedy
    return item["msg"], remedy


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value, default=str)[:40]


# --- files and folders ---


def read_files(
    settings: FilesSettings, splits: SplitSettings, bounds: ProblemBounds
) -> tuple[list[Draft], list[Rejected]]:
    """Drafts of the rows and headings, and the documents that cannot be read.

    Raises:
        SourceError: the file or the folder cannot be read at all.
    """
    left_out: list[Rejected] = []
    folders: dict[str | None, Documents] = {}
    for name in dict.fromkeys((settings.documents, settings.headings)):
        if name is None:
            continue
        folder = folders[name] = Documents(Path(name), bounds.max_text_chars)
        outcomes = [folder.get(one) for one in folder.names()]
        unreadable = [one for one in outcomes if isinstance(one, Rejected)]
        if len(unreadable) == len(outcomes):
            first = f" ({unreadable[0]})" if unreadable else ""
            raise SourceError(
                f"{folder.folder}: contains no readable document{first}. Put "
                f"{', '.join(READABLE)} there, or name another folder."
            )
        left_out += [*folder.closed, *unreadable]
    asked: list[Draft] = []
    if settings.path is not None:
        asked = read_rows(Path(settings.path), folders.get(settings.documents))
    if settings.headings is None:
        return asked, left_out
    # Questions of people beside headings are the test, without documents that are trained on.
    titled, quoted = folders[settings.headings], set[str]()
    for draft in asked:
        ids = {place.paper_id for fact in draft.facts for place in fact}
        quoted |= {paper.text for paper in draft.papers if paper.paper_id in ids}
    trained = {paper.text for paper in titled.papers()} - quoted
    tested = [
        replace(
            draft, split="test", papers=[one for one in draft.papers if one.text not in trained]
        )
        for draft in asked
    ]
    made = headings.drafts(titled, splits, bounds, settings.path is None, quoted)
    return [*tested, *made], left_out


def read_rows(path: Path, documents: Documents | None) -> list[Draft]:
    """Drafts of a file's rows in order; blank lines are skipped, those above `MAX_MB` are faults.

    Raises:
        SourceError: the file is missing, empty, unreadable, or not JSONL.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise SourceError(f"{path}: {what}. Name a JSONL file (prepare.files.path).")
    if path.suffix.lower() != ".jsonl":
        raise SourceError(f"{path}: is not .jsonl, see {_HOW}.")
    drafts: list[Draft] = []
    any_json, limit = False, MAX_MB * 1_000_000
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, limit + 1), b""), 1):
                row, rest = f"{path.name}:{number}", line
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(limit)
                if not line.strip():
                    continue
                try:
                    if len(line) > limit:
                        raise RowFault(f"is longer than {MAX_MB} MB", "write one problem per line")
                    data = parse_json(line.removeprefix(codecs.BOM_UTF8 if number == 1 else b""))
                except RowFault as error:
                    drafts.append(Draft(row, faults=[error.at(row, WHOLE_ROW)]))
                else:
                    any_json = True
                    drafts.append(_draft(row, data, documents))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not drafts:
        raise SourceError(f"{path}: contains no row. Write one problem per line, see {_HOW}.")
    if not any_json:
        (first,) = drafts[0].faults
        raise SourceError(
            f"{path}: none of its {len(drafts)} lines is a JSON value ({first.row}: "
            f"{first.reason}). Write one object per line in UTF-8, without indentation, see {_HOW}."
        )
    return drafts


def parse_json(text: bytes) -> Any:
    """Plain values of strict JSON.

    Raises:
        RowFault: the text is not UTF-8 or JSON, contains NaN, an infinity or a key twice, or is
            nested too deeply.
    """
    try:
        return json.loads(text.decode(), parse_constant=_no_constant, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not valid UTF-8, it may be UTF-16"
    except json.JSONDecodeError as error:
        what = f"{error.msg} at character {error.pos}"
    except RecursionError:
        what = "nested too deeply"
    except ValueError as error:  # NaN, a key that occurs twice, or an integer of 10,000 digits
        what = str(error)
    raise RowFault(f"is not JSON: {what}", "correct it there: one object per line, in UTF-8")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"contains {name}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"contains the key {twice!r} twice")
    return members


def _draft(row: str, data: Any, documents: Documents | None) -> Draft:
    """The row with its papers, or its faults."""
    try:
        parsed, rejected = UserRow.model_validate(data), list[Rejected]()
    except ValidationError as error:
        rejected = faults(row, error)
        wrong = {name for item in error.errors() for name in item["loc"][:1]}
        if not isinstance(data, dict) or wrong & {"papers", "evidence"}:
            return Draft(row, faults=rejected)
        rest = {"question": "?"} | {key: data[key] for key in data if key not in wrong}
        parsed = UserRow.model_validate(rest)
    facts = [fact.places(f"evidence[{i}]") for i, fact in enumerate(parsed.evidence)]
    if documents is None:
        papers, missing = _inline(row, parsed)
    else:
        papers, missing = _from_folder(row, parsed, facts, documents)
    if missing:  # quotes of papers that are missing have no fault of their own
        ids = {paper.paper_id for paper in papers}
        facts = [[place for place in fact if place.paper_id in ids] for fact in facts]
    given = parsed.model_dump(exclude={"papers", "documents", "evidence"})
    field, known = "papers" if documents is None else "documents", [*rejected, *missing]
    return Draft(row, papers=papers, facts=facts, papers_field=field, faults=known, **given)


def _inline(row: str, parsed: UserRow) -> tuple[list[Paper], list[Rejected]]:
    papers = [row_paper.paper() for row_paper in parsed.papers or ()]
    if parsed.documents is not None:
        remedy = "name the folder with --documents DIR or prepare.files.documents"
        return papers, [Rejected(row, "documents", "needs a folder of documents", remedy)]
    remedy = f"{_REMEDIES['papers']}, or name a folder of documents"
    return papers, [] if papers else [Rejected(row, "papers", "is missing", remedy)]


def _from_folder(
    row: str, parsed: UserRow, facts: Sequence[Sequence[Place]], documents: Documents
) -> tuple[list[Paper], list[Rejected]]:
    """Documents that a row names, by file or folder; all readable ones if it names none."""
    if parsed.papers is not None:
        remedy = "delete `papers`, or check without a folder of documents"
        return [], [Rejected(row, "papers", "cannot be used with a folder of documents", remedy)]
    if parsed.documents is None:
        papers = documents.papers()
        named = [(place.field, place.paper_id) for fact in facts for place in fact]
    else:
        inside = {name: documents.within(name) for name in parsed.documents}
        names = [one for name in parsed.documents for one in inside[name] or [name]]
        papers = documents.papers(names)
        each = enumerate(parsed.documents)
        named = [(f"documents[{i}]", name) for i, name in each if not inside[name]]
    return papers, [
        Rejected(row, field, f"{name!r}: {outcome.reason}", outcome.remedy)
        for field, name in named
        if isinstance(outcome := documents.get(name), Rejected)
    ]
