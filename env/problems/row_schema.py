"""One row of a user's own problems, and its faults in words.

The types are pydantic's, its errors become the four words of a `Rejected`: row, field, reason,
remedy. What a row means beyond its own types (does the paper exist, does the quote stand in it)
is decided in `drafts.py`. The schema is documented in docs/own_data.md.
"""

from __future__ import annotations

from collections.abc import Iterable
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

from env.problems.schema import Level, Split
from env.problems.source import Rejected

WHOLE_ROW = "(whole row)"
_ALIKE = 60.0
"""rapidfuzz's ratio from which a name is offered as what was meant."""


def _clean(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError(
            "nul", "holds a NUL character", {"remedy": "delete the \\u0000 in it"}
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError(
            "surrogate",
            "holds a lone surrogate, which is no character",
            {"remedy": "delete the \\ud8.. escape in it"},
        ) from None
    return text


def _filled(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError(
            "blank", "holds nothing" if not text else "holds nothing but white space"
        )
    return _clean(text)


Text = Annotated[str, AfterValidator(_clean)]
Filled = Annotated[str, AfterValidator(_filled)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PaperRow(_Part):
    """A paper that the row itself holds."""

    paper_id: Filled
    text: Filled
    title: Text | None = None
    abstract: Text | None = None


class QuoteRow(_Part):
    """Where a fact stands: in which paper or document, and there a quote or characters."""

    paper_id: Filled | None = None
    document: Filled | None = None
    quote: Filled | None = None
    start: int | None = Field(None, ge=0)
    end: int | None = Field(None, ge=0)

    @property
    def place(self) -> str:
        """The paper or document that it names."""
        return self.paper_id or self.document or ""

    @model_validator(mode="after")
    def _one_of_each(self) -> QuoteRow:
        if (self.paper_id is None) == (self.document is None):
            raise PydanticCustomError(
                "place",
                "names no paper" if self.paper_id is None else "names a paper and a document",
                {"remedy": 'write either "paper_id" or "document"'},
            )
        offsets = (self.start is not None) + (self.end is not None)
        if offsets == 1:
            raise PydanticCustomError(
                "half", "has only one of start and end", {"remedy": "write both, or a quote"}
            )
        if (self.quote is None) == (offsets == 0):
            raise PydanticCustomError(
                "what",
                "has neither a quote nor start and end"
                if self.quote is None
                else "has a quote and start and end as well",
                {"remedy": 'write either "quote", or "start" and "end"'},
            )
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise PydanticCustomError(
                "order",
                "start {start} is not before end {end}",
                {
                    "start": self.start,
                    "end": self.end,
                    "remedy": "characters are counted from 0, and end is behind the last one",
                },
            )
        return self


class AlternativesRow(_Part):
    """A fact that stands at several places; any of them is right."""

    alternatives: Annotated[list[QuoteRow], Field(min_length=1)]


_TAGS = ("<quote>", "<alternatives>")


def _kind_of_fact(data: Any) -> str:
    return _TAGS[isinstance(data, dict) and "alternatives" in data]


FactRow = Annotated[
    Annotated[QuoteRow, Tag(_TAGS[0])] | Annotated[AlternativesRow, Tag(_TAGS[1])],
    Discriminator(_kind_of_fact),
]


class Row(_Part):
    """One problem as a user writes it."""

    question: Filled
    papers: Annotated[list[PaperRow], Field(min_length=1)] | None = None
    documents: Annotated[list[Filled], Field(min_length=1)] | None = None
    evidence: Annotated[list[FactRow], Field(min_length=1)]
    problem_id: Filled | None = None
    group_id: Filled | None = None
    split: Split | None = None
    difficulty: Level | None = None


def parse(row: str, data: Any) -> Row | list[Rejected]:
    """The row, or all that is wrong with its types.

    Args:
        row: its name, such as `problems.jsonl:17`.
        data: plain values.
    """
    if not isinstance(data, dict):
        return [
            Rejected(row, WHOLE_ROW, f"is {_kind(data)}, not an object", 'write {"question": ...}')
        ]
    if not data:
        return [Rejected(row, WHOLE_ROW, "is an empty object", "fill it or delete the line")]
    try:
        return Row.model_validate(data)
    except ValidationError as error:
        return faults(row, error, _keys)


def faults(row: str, error: ValidationError, keys: Any) -> list[Rejected]:
    """A ValidationError in words.

    Args:
        row: its name.
        error: of any model.
        keys: gives for the path of an object the keys that it may have.
    """
    found = []
    for item in error.errors(include_url=False):
        path = [part for part in item["loc"] if part not in _TAGS]
        reason, remedy = _words(item, path, keys)
        found.append(Rejected(row, field_path(path), reason, remedy))
    return found


def field_path(parts: Iterable[str | int]) -> str:
    """`("papers", 2, "text")` as `papers[2].text`."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or WHOLE_ROW


def did_you_mean(wrong: str, known: Iterable[str]) -> str | None:
    """The nearest of the known names, when one is near."""
    found = process.extractOne(wrong, list(known), score_cutoff=_ALIKE)
    return found[0] if found else None


def _keys(path: list[str | int]) -> list[str]:
    """Keys that the object at this place of a row may have."""
    names = [part for part in path if isinstance(part, str)]
    model: type[BaseModel] = Row
    if names:
        model = PaperRow if names[0] == "papers" else QuoteRow
    keys = list(model.model_fields)
    return [*keys, "alternatives"] if names == ["evidence"] else keys


_REMEDIES = {
    "question": 'write the question as text: "question": "..."',
    "papers": 'write "papers": [{"paper_id": "...", "text": "..."}]',
    "documents": 'write "documents": ["a.md", "b.pdf"], paths within the folder',
    "evidence": 'write "evidence": [{"paper_id": "...", "quote": "..."}]',
    "alternatives": 'write "alternatives": [{"paper_id": "...", "quote": "..."}, ...]',
    "paper_id": 'write the id of the paper as text: "paper_id": "..."',
    "document": 'write its path within the folder: "document": "..."',
    "text": 'write the text of the paper: "text": "..."',
    "quote": 'quote the paper: "quote": "..."',
    "start": "count characters from 0, in whole numbers",
    "end": "count characters from 0, in whole numbers; end is behind the last one",
    "title": "write text, or leave it out",
    "abstract": "write text, or leave it out",
    "problem_id": "write text, or leave it out: the row's content then gives an id",
    "group_id": "write text, or leave it out",
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


def _words(item: ErrorDetails, path: list[str | int], keys: Any) -> tuple[str, str]:
    """Reason and remedy."""
    kind, value = item["type"], item["input"]
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    remedy = item.get("ctx", {}).get("remedy") or _REMEDIES.get(name, "see docs/own_data.md")
    if kind == "missing":
        return "is missing", remedy
    if kind == "extra_forbidden":
        known = keys(path[:-1])
        if path[-1] in known:
            return "does not stand beside the others", "delete it, or put it where it belongs"
        meant = did_you_mean(str(path[-1]), known)
        if meant:
            return f"unknown key; did you mean {meant!r}?", f"rename it to {meant!r}"
        return "unknown key", f"delete it; known are {', '.join(known)}"
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
