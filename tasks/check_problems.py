"""The command `check-problems`: what the chain would make of a user's own problems, in words.

Reads them exactly as the stage `prepare` does, with the same settings, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from env.problems.source import Found, Rejected
from tasks import prepare
from tasks.config import Params
from tasks.errors import StageError


@dataclass(frozen=True)
class Checked:
    """What was found, and why a stage would stop all the same."""

    path: str
    found: Found
    stops: list[str]

    @property
    def good(self) -> bool:
        """Whether the chain would take the file, and each of its rows."""
        return not (self.faults or self.stops)

    @property
    def faults(self) -> list[Rejected]:
        """Of rows; an empty list is a good file."""
        return self.found.rejected


def read(params: Params, path: str, documents: str | None) -> Checked:
    """Read the file as `prepare` does.

    Args:
        params: settings; their own source does not matter.
        path: the problems.
        documents: the folder they quote; None takes that of the settings.

    Raises:
        ConfigError: the file or the folder cannot be read.
    """
    files = {"path": path, "documents": documents or params.prepare.files.documents}
    section = params.prepare.model_copy(
        update={"source": "files", "files": params.prepare.files.model_copy(update=files)}
    )
    params = params.model_copy(update={"prepare": section})
    found = prepare.read(params)
    try:
        prepare.judge(params, found)
    except StageError as error:
        reason = str(error).splitlines()[0].removeprefix("prepare: ")
        return Checked(path, found, [f"prepare would stop: {reason}"])
    return Checked(path, found, [f"validate would stop: {what}" for what in too_few(params, found)])


def too_few(params: Params, found: Found) -> Iterator[str]:
    """A line for each split that has fewer rows than the stage `validate` wants, in all or of a
    difficulty."""
    bounds = params.validate_
    for split in prepare.SPLITS:
        levels = Counter(p.difficulty for p in found.problems if p.split == split)
        rows = levels.total()
        lacks = []
        if rows < bounds.min_rows:
            lacks.append(f"rows {rows} (validate.min_rows {bounds.min_rows})")
        least = bounds.difficulty_share * rows
        if few := [f"{x} {levels[x]}" for x in params.prepare.levels if levels[x] < least]:
            lacks.append(
                f"{', '.join(few)} (validate.difficulty_share {bounds.difficulty_share:g})"
            )
        if lacks:
            yield f"too few in {split}: {', '.join(lacks)}"


def told(checked: Checked) -> Iterator[str]:
    """The report, line by line: each fault, then the sums."""
    found = checked.found
    for fault in found.rejected:
        yield f"{fault.row}  {fault.field}"
        yield f"    wrong: {fault.reason}"
        yield f"    mend:  {fault.remedy}"
    for fault in found.left_out:
        yield f"left out: {fault.row}: {fault.reason}; {fault.remedy}"
    quotes = found.quotes
    lowest = f" (lowest similarity {quotes.lowest_similarity:g})" if quotes.fuzzy else ""
    splits = Counter(problem.split for problem in found.problems)
    groups = len({problem.group_id for problem in found.problems})
    yield f"rows:   {len(found.problems)} good, {found.rejected_rows} rejected"
    yield (
        f"quotes: {quotes.exact} exact, {quotes.normalised} normalised, {quotes.fuzzy} fuzzy"
        f"{lowest}, {quotes.offsets} by offsets, {quotes.rejected} rejected"
    )
    dealt = ", ".join(f"{split} {splits[split]}" for split in prepare.SPLITS)
    yield f"splits: {dealt}; {groups} groups that share nothing"
    yield from checked.stops
