"""Schema of a row of a user's own problems, and messages for its faults.

pydantic checks the types, and each of its errors becomes a `Rejected`. `drafts.py` checks the
rest: whether the paper exists and contains the quote. docs/own_data.md documents the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from rapidfuzz import process

from env.problems.schema import Level, Paper, Split
from tasks.data.source import Rejected

WHOLE_ROW = "(whole row)"
Keys = Callable[[list[str | int]], Sequence[str]]
_ALIKE = 60.0
"""rapidfuzz's ratio, 0 to 100, from which a name is suggested."""


def _fault(reason: str, remedy: str | None = None) -> PydanticCustomError:
    # Braces in the message itself would be read as a template.
    return PydanticCustomError("row", "{reason}", {"reason": reason, "remedy": remedy})


def _clean(text: str) -> str:
    if "\0" in text:
        raise _fault("contains a NUL character", "delete the \\u0000 in it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _fault(
            "contains a lone surrogate, which is not a character",
            "delete the \\ud8.. escape in it",
        ) from None
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
        return Paper(
            paper_id=self.paper_id,
            title=self.title or "",
            abstract=self.abstract or "",
            text=self.text,
        )


class QuoteRow(_Part):
    """Location of a fact: a quote or characters of a paper or document."""

    paper_id: Filled | None = None
    document: Filled | None = None
    quote: Filled | None = None
    start: int | None = Field(None, ge=0)
    end: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_of_each(self) -> QuoteRow:
        if (self.paper_id is None) == (self.document is None):
            reason = "names no paper" if self.paper_id is None else "names a paper and a document"
            raise _fault(reason, 'write either "paper_id" or "document"')
        offsets = (self.start is not None) + (self.end is not None)
        if offsets == 1:
            raise _fault("has only one of start and end", "write both, or a quote")
        if (self.quote is None) == (offsets == 0):
            both = "has a quote and also start and end"
            reason = both if self.quote else "has neither a quote nor start and end"
            raise _fault(reason, 'write either "quote", or "start" and "end"')
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise _fault(
                f"start {self.start} is not before end {self.end}",
                "count characters from 0; end is one past the last",
            )
        return self


class AlternativesRow(_Part):
    """A fact with several places; any of them is right."""

    alternatives: Annotated[list[QuoteRow], Field(min_length=1)]


_TAGS = ("<quote>", "<alternatives>")


FactRow = Annotated[
    Annotated[QuoteRow, Tag(_TAGS[0])] | Annotated[AlternativesRow, Tag(_TAGS[1])],
    Discriminator(lambda data: _TAGS[isinstance(data, dict) and "alternatives" in data]),
]


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


def parse(row: str, data: Any) -> tuple[UserRow | None, list[Rejected]]:
    """The row and all faults of its types; None if its papers or evidence cannot be read.

    Args:
        row: its name, such as `problems.jsonl:17`.
        data: plain values.
    """
    if not isinstance(data, dict):
        reason = f"is {_kind(data)}, not an object"
        return None, [Rejected(row, WHOLE_ROW, reason, 'write {"question": ...}')]
    if not data:
        return None, [Rejected(row, WHOLE_ROW, "is an empty object", "fill it or delete the line")]
    try:
        return UserRow.model_validate(data), []
    except ValidationError as error:
        wrong = {item["loc"][0] for item in error.errors(include_url=False)}
        rest = {"question": "?"} | {key: data[key] for key in data if key not in wrong}
        rejected = faults(row, error, _keys)
        return None if wrong & {"papers", "evidence"} else UserRow.model_validate(rest), rejected


def faults(row: str, error: ValidationError, keys: Keys) -> list[Rejected]:
    """Faults that a ValidationError reports.

    Args:
        row: name of the row.
        error: error of any model.
        keys: function from the path of an object to its valid keys.
    """
    rejected = []
    for item in error.errors(include_url=False):
        path = [part for part in item["loc"] if part not in _TAGS]
        reason, remedy = _describe(item, path, keys)
        rejected.append(Rejected(row, field_path(path), reason, remedy))
    return rejected


def field_path(parts: Iterable[str | int]) -> str:
    """Path as text: `papers[2].text` for `("papers", 2, "text")`."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or WHOLE_ROW


def did_you_mean(wrong: str, names: Iterable[str]) -> str | None:
    """The most similar known name; None if none is similar."""
    match = process.extractOne(wrong, list(names), score_cutoff=_ALIKE)
    return match[0] if match else None


def _keys(path: list[str | int]) -> list[str]:
    """Valid keys of the object at this path of a row."""
    names = [part for part in path if isinstance(part, str)]
    model: type[BaseModel] = UserRow
    if names:
        model = PaperRow if names[0] == "papers" else QuoteRow
    keys = list(model.model_fields)
    return [*keys, "alternatives"] if names == ["evidence"] else keys


_REMEDIES = {
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
    "title": "write text, or leave it out",
    "abstract": "write text, or leave it out",
    "problem_id": "write text, or leave it out: the id is then a hash of the row",
    "collection_id": "write text, or leave it out",
    "split": "write train, validation or test in every row, or leave it out of all",
    "difficulty": "write easy, medium or hard, or leave it out",
}

_EXPECTED = {
    "string_type": "text",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
}


def _describe(item: ErrorDetails, path: list[str | int], keys: Keys) -> tuple[str, str]:
    """Reason and remedy of an error."""
    kind, value = item["type"], item["input"]
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    remedy = item.get("ctx", {}).get("remedy") or _REMEDIES.get(name, "see docs/own_data.md")
    if kind == "missing":
        return "is missing", remedy
    if kind == "extra_forbidden":
        valid_keys = keys(path[:-1])
        if path[-1] in valid_keys:
            return "cannot be combined with the other keys", "delete it, or move it to its object"
        meant = did_you_mean(str(path[-1]), valid_keys)
        if meant:
            return f"unknown key; did you mean {meant!r}?", f"rename it to {meant!r}"
        return "unknown key", f"delete it; valid keys are {', '.join(valid_keys)}"
    if kind == "literal_error":
        meant = did_you_mean(str(value), item["ctx"]["expected"].replace("'", "").split(", "))
        return f"is {_kind(value)}" + (f"; did you mean {meant!r}?" if meant else ""), remedy
    if kind == "too_short":
        return "is an empty list", remedy
    if kind == "greater_than_equal":
        return f"is {value}, below {item['ctx']['ge']}", remedy
    if kind in _EXPECTED:
        return f"is {_kind(value)}, not {_EXPECTED[kind]}", remedy
    return item["msg"], remedy


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
