"""The reader of `text/*.toml`: every sentence, heading and name that papers and questions use.

The models say which tables and keys each file has; `text/placeholders.toml` says how its forms are
written. Python elsewhere in this folder holds logic only.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator

from env.problems.papers.forms import DRAWN, PLACEHOLDER, Forms, forms
from env.settings import Settings

FOLDER = Path(__file__).parent / "text"

Role = Literal["method", "data", "rerun"]
"""Subject of a paper."""
Section = Literal[
    "introduction", "related", "method", "setup", "results", "ablation", "limits", "conclusion"
]


def _exactly(*keys: str) -> AfterValidator:
    def check(table: dict[str, Any]) -> dict[str, Any]:
        if set(table) != set(keys):
            raise ValueError(f"needs exactly the keys {', '.join(keys)}")
        return table

    return AfterValidator(check)


_ROLES, _SECTIONS = _exactly(*get_args(Role)), _exactly(*get_args(Section))
_SPLITS = _exactly("test", "dev")
_Forms = Annotated[Forms, BeforeValidator(forms)]
_ByRole = Annotated[dict[Role, _Forms], _ROLES]


class Ways(Settings):
    """One thing in the words of the plain question, and in others."""

    plain: _Forms
    oblique: _Forms

    def of(self, indirect: bool) -> Forms:
        """The forms for a direct or an indirect statement."""
        return self.oblique if indirect else self.plain


class Statement(Ways):
    """A fact that papers state, and what only looks like it."""

    near: _Forms


class Topic(Statement):
    """A statement that questions ask for."""

    ask: Ways


class Trait(Topic):
    """A property of one method."""

    section: Section
    values: _Forms


class Ablation(Topic):
    """The loss without a part; `lead` comes before an oblique statement."""

    lead: _Forms


class Results(Settings):
    """Statements and questions about scores."""

    aliases: tuple[str, ...]
    second_release: str
    own: _Forms
    summary: _Forms
    rerun: _Forms
    cited: _Forms
    pair: _Forms
    pair_of: _Forms
    variant: _Forms
    absent: _Forms
    where: Annotated[dict[str, Ways], _SPLITS]
    ask_score: Ways
    ask_board: Ways
    ablation: Ablation


class Corpora(Settings):
    """Statements and questions about training data."""

    trained: Statement
    size: Statement
    ask: Ways
    ask_many: _Forms


class Layout(Settings):
    """The frame of a paper."""

    shares: Annotated[dict[Section, float], _SECTIONS]
    headings: Annotated[dict[Role, Annotated[dict[Section, str], _SECTIONS]], _ROLES]
    titles: _ByRole
    small_words: tuple[str, ...]
    openings: _ByRole
    closings: _Forms
    mention: _Forms
    measures: _Forms
    captions: Annotated[dict[str, _Forms], _SPLITS]


class Passages(Settings):
    """Running text."""

    abstract: _Forms
    introduction: _Forms
    related: _Forms
    method: _ByRole
    setup: _ByRole
    results: _Forms
    ablation: _ByRole
    limits: _Forms
    conclusion: _Forms
    appendix: _Forms
    canaries: _Forms
    synonyms: tuple[tuple[str, ...], ...]


class Names(Settings):
    """Names of a field's things."""

    manners: tuple[str, ...]
    benchmarks: tuple[str, ...]
    corpora: tuple[str, ...]
    method_first: _Forms
    method_second: tuple[str, ...]
    method_third: tuple[str, ...]
    part_first: tuple[str, ...]
    part_second: tuple[str, ...]
    materials: dict[str, str]
    metrics: dict[str, str]


class PaperTemplates(Settings):
    """The files by their names, without `.toml`."""

    placeholders: dict[str, str]
    aspects: dict[str, Topic]
    traits: Annotated[dict[str, Trait], _exactly("weakness", "cause", "updates", "size")]
    results: Results
    corpora: Corpora
    layout: Layout
    passages: Passages
    field: Names


@cache
def templates() -> PaperTemplates:
    """The content of all files, read once.

    Raises:
        ValueError: a file is malformed, or uses a placeholder that placeholders.toml does not list.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name in PaperTemplates.model_fields:
        text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
        tables[name] = tomllib.loads(text)
        if unknown := set(PLACEHOLDER.findall(text)) - {*DRAWN, *tables["placeholders"]}:
            raise ValueError(f"{name}.toml: placeholders.toml does not list {sorted(unknown)}")
    return PaperTemplates.model_validate(tables)
