"""Stage `prepare`: read problems from their source, complete, check and split them.

`tasks/data` reads rows into drafts, places their quotes in the papers, and splits the problems.
Invalid rows are rejected; the report has the reasons.

Writes data/problems/{train,validation,test}.parquet (columns: `env.problems.schema.COLUMNS`) and
data/report.json: rows, collections, shares and content hash of each split, how quotes were found,
and the rejected rows.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from env.errors import SourceError
from env.problems.fields import generate
from env.problems.schema import CANDIDATES, COLUMNS, Split, to_row
from env.problems.schema import SPLITS as SPLITS
from tasks import paths
from tasks.config import prepared
from tasks.config.params import Params
from tasks.data.place import place
from tasks.data.read import read_files
from tasks.data.rows import Candidate, Draft, Found, ProblemBounds, Quotes, Rejected
from tasks.data.settings import SplitSettings
from tasks.data.split import deal
from tasks.errors import ConfigError, StageError
from tasks.io import replacing, write_json
from tasks.reporting import progress
from tasks.tracking.runs import StageRun

MAX_REJECTED = 0.5
"""Share of the rows; with more, the file is of another kind than its reader expects."""
_NAMED = 5
"""Maximum number of rejected rows in an error message."""

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Write the problems and their report; returns the folder of the problems.

    Raises:
        ConfigError: the source cannot be read.
        StageError: too many rows are rejected, or a split is empty.
    """
    data = read_source(params)
    require_trainable(params, data)
    rows = {
        split: [to_row(problem) for problem in data.problems if problem.split == split]
        for split in SPLITS
    }
    report = describe(data, rows, params.prepare.source) | {prepared.KEY: prepared.digest(params)}
    with replacing(paths.PROBLEMS) as folder:
        folder.mkdir()
        for split in SPLITS:
            write_parquet(folder / f"{split}.parquet", rows[split])
    write_json(paths.PREPARED, report)
    run.log_metrics(
        {f"data/{split}_rows": len(rows[split]) for split in SPLITS}
        | {"data/rejected_rows": data.rejected_rows}
        | {f"data/quotes_{how}": n for how, n in vars(data.quotes).items()}
    )
    run.log_artifact(paths.PREPARED)
    if data.rejected:
        message = "prepare: rejected rows: %d; %s says why"
        logger.warning(message, data.rejected_rows, paths.PREPARED)
    return paths.PROBLEMS


def read_source(params: Params) -> Found:
    """Problems of the source in their splits, and rejected rows.

    Raises:
        ConfigError: the source cannot be read.
    """
    settings = params.prepare
    if settings.source == "synthetic":
        return Found(generate(settings.synthetic))
    bounds = ProblemBounds(**prepared.bounds(params))
    try:
        with progress.doing("read", "rows") as work:
            drafts, left_out = read_files(settings.files, settings.splits, bounds)
            found = find(drafts, settings.splits, bounds, work.reach)
    except SourceError as error:
        raise ConfigError(str(error)) from None
    return replace(found, left_out=left_out)


def find(
    drafts: Iterable[Draft],
    splits: SplitSettings,
    bounds: ProblemBounds,
    reach: Callable[[int], None] = lambda number: None,
) -> Found:
    """Problems of drafts in their splits, and all faults in the order of the rows.

    Args:
        drafts: what a source has read.
        splits: shares and similarities of the splits.
        bounds: limits of a problem.
        reach: called with the number of finished rows.

    Raises:
        SourceError: the source, or the list of trained questions, cannot be read.
    """
    order: dict[str, int] = {}
    quotes, candidates, rejected = Quotes(), list[Candidate](), list[Rejected]()
    for number, draft in enumerate(drafts, 1):
        order[draft.row] = number
        placed = place(draft, bounds, quotes)
        if isinstance(placed, Candidate):
            candidates.append(placed)
        else:
            rejected += placed
        reach(number)
    problems, faults = deal(candidates, splits)
    rejected = sorted([*rejected, *faults], key=lambda fault: order[fault.row])
    return Found(problems, rejected, quotes=quotes)


def require_trainable(params: Params, data: Found) -> None:
    """Refuse data that is unfit for training.

    Raises:
        StageError: too many rows were rejected, or a split is empty.
    """
    source, files = params.prepare.source, params.prepare.files
    # Beside headings, the questions of a file are the test.
    beside = source == "files" and bool(files.headings and files.path)
    rejected, counts = data.rejected_rows, Counter(one.split for one in data.problems)
    rows = rejected + (counts["test"] if beside else counts.total())
    named = [f"\n  {fault}" for fault in data.rejected[:_NAMED]]
    more = len(data.rejected) - len(named)
    first = "".join(named) + (f"\n  and {more} more" if more else "")
    if rejected / max(1, rows) > MAX_REJECTED:
        raise StageError(
            f"{rejected} of {rows} rows were rejected, more than a share of {MAX_REJECTED:g}{first}"
        )
    for split in (split for split in SPLITS if not counts[split]):
        number = len({problem.collection_id for problem in data.problems})
        short = "three are needed" if number < len(SPLITS) else "none of which is dealt to it"
        fix = (
            f"{counts.total()} problems form {number} collections, {short}. "
            "Add problems whose evidence is in other documents."
        )
        if beside and split == "test":
            fix = f"It takes the questions of {files.path}."
        if source == "synthetic":
            fix = f"Raise prepare.synthetic.collections.{split}."
        raise StageError(f"the split {split!r} is empty (rows rejected: {rejected}). {fix}{first}")


def write_parquet(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows of strings, in the columns that they have; equal rows give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = (*COLUMNS, CANDIDATES) if any(CANDIDATES in row for row in rows) else COLUMNS
    schema = pa.schema([(name, pa.string()) for name in columns])
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, compression="zstd")


def describe(data: Found, rows: dict[Split, list[dict[str, str]]], source: str) -> dict[str, Any]:
    """The report on the data as plain JSON values."""
    problems = data.problems
    splits = {}
    for split in SPLITS:
        members = [problem for problem in problems if problem.split == split]
        splits[split] = {
            "rows": len(members),
            "collections": len({problem.collection_id for problem in members}),
            "content_sha256": content_hash(rows[split]),
            "difficulty_shares": {
                name: round(count / len(members), 4)
                for name, count in sorted(Counter(one.difficulty for one in members).items())
            },
            "facts": sum(len(problem.evidence) for problem in members),
            "longest_paper_chars": max(
                (len(paper.text) for problem in members for paper in problem.papers), default=0
            ),
        }
    return {
        "source": source,
        "rows": len(problems),
        "splits": splits,
        "quotes": vars(data.quotes),
        "rejected": data.rejected_rows,
        "rejected_rows": [*map(vars, data.rejected)],
        "left_out_documents": [*map(vars, data.left_out)],
    }


def content_hash(rows: Sequence[dict[str, str]]) -> str:
    """SHA-256 of the rows as JSON lines, independent of the version of the file format."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()
