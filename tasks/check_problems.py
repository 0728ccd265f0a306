"""Command `check-problems`: report the faults of a user's own problems.

It reads them with the settings and code of the stage `prepare`, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tasks import prepare
from tasks.config.params import Params
from tasks.data.rows import Found
from tasks.errors import StageError

SHOWN = 3
"""Rows that are named where many have the same fault."""


@dataclass(frozen=True)
class Checked:
    """Problems of a file, and the reasons for which a stage would stop."""

    found: Found
    stops: list[str]

    @property
    def good(self) -> bool:
        """Whether the chain would accept the file and all its rows."""
        return not (self.found.rejected or self.stops)


def read_problem_rows(params: Params, path: str, documents: str | None) -> Checked:
    """Read a file as the stage `prepare` does.

    Args:
        params: settings; `prepare.source` is ignored.
        path: file with the problems.
        documents: folder with the papers that they quote; None for `prepare.files.documents`.

    Raises:
        ConfigError: the file or the folder cannot be read.
    """
    update = {"path": path, "documents": documents or params.prepare.files.documents}
    files = params.prepare.files.model_copy(update=update)
    section = params.prepare.model_copy(update={"source": "files", "files": files})
    params = params.model_copy(update={"prepare": section})
    data = prepare.read_source(params)
    try:
        prepare.require_trainable(params, data)
    except StageError as error:
        return Checked(data, [f"prepare would stop: {str(error).splitlines()[0]}"])
    stops = []
    for split in prepare.SPLITS:
        levels = [problem.difficulty for problem in data.problems if problem.split == split]
        if lack := params.validate_.lack(levels, params.prepare.levels):
            stops.append(f"validate would stop: too few problems in {split}: {lack}")
    return Checked(data, stops)


def report_lines(checked: Checked) -> Iterator[str]:
    """Lines of the report: the faults, then the totals."""
    data = checked.found
    rows: dict[tuple[str, str, str], list[str]] = {}
    for fault in data.rejected:
        rows.setdefault((fault.field, fault.reason, fault.remedy), []).append(fault.row)
    for (field, reason, remedy), names in rows.items():
        more = f" and {len(names) - SHOWN} more rows" if len(names) > SHOWN else ""
        yield f"{', '.join(names[:SHOWN])}{more}  {field}"
        yield f"    problem: {reason}"
        yield f"    fix:     {remedy}"
    for fault in data.left_out:
        yield f"left out: {fault.row}: {fault.reason}; {fault.remedy}"
    quotes = data.quotes
    splits = Counter(problem.split for problem in data.problems)
    dealt = ", ".join(f"{split} {splits[split]}" for split in prepare.SPLITS)
    collections = len({problem.collection_id for problem in data.problems})
    yield f"rows:   {len(data.problems)} good, {data.rejected_rows} rejected"
    yield (
        f"quotes: {quotes.exact} exact, {quotes.normalised} normalised, "
        f"{quotes.offsets} by offsets, {quotes.rejected} rejected"
    )
    yield f"splits: {dealt}; {collections} separate collections"
    yield from checked.stops
