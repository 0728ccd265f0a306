"""Stage `prepare`: problems from their source, completed, checked and split by group.

Every exact further occurrence of a gold text becomes an alternative of its fact. A row that is no
problem, or one whose reward nobody could earn, is rejected, with the reason in the report.

Writes data/problems/{train,validation,test}.parquet (columns: `env.problems.schema.COLUMNS`) and
data/report.json: rows, groups, shares and a hash of the content for each split, how the quotes
were found, and what was rejected.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from env.errors import SourceError, SourceUnreachable
from env.problems import files, hub
from env.problems.align import add_alternatives, fault
from env.problems.schema import COLUMNS, Problem, Split, to_row
from env.problems.source import Bounds, Found, Rejected, Repetitions
from env.problems.splits import SPLITS as SPLITS
from env.problems.synthetic import generate
from tasks.config import Params
from tasks.errors import ConfigError, StageError
from tasks.outputs import replacing, write_json
from tasks.progress import Counted

if TYPE_CHECKING:
    from tasks.tracking import StageRun

PROBLEMS = Path("data/problems")
REPORT = Path("data/report.json")

_NAMED = 5
"""Rejected rows that an error names."""

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Write the problems and their report; returns the folder of the problems.

    Raises:
        ConfigError: the source cannot be read.
        StageError: the Hub does not answer, too many rows are rejected, or no problem is left in
            a split.
    """
    found = read(params)
    judge(params, found)
    rows = {
        split: [to_row(problem) for problem in found.problems if problem.split == split]
        for split in SPLITS
    }
    report = describe(found, rows, params.prepare.source)
    with replacing(PROBLEMS) as folder:
        folder.mkdir()
        for split in SPLITS:
            write_parquet(folder / f"{split}.parquet", rows[split])
    write_json(REPORT, report)
    run.log_metrics(
        {f"data/{split}_rows": len(rows[split]) for split in SPLITS}
        | {"data/rejected_rows": found.rejected_rows}
        | {f"data/quotes_{how}": n for how, n in found.quotes.as_dict().items() if n is not None}
    )
    run.log_artifact(REPORT)
    logger.info("prepare: %d problems, %d rejected", len(found.problems), found.rejected_rows)
    return PROBLEMS


def read(params: Params) -> Found:
    """All that the source of the settings holds, in its splits.

    Raises:
        ConfigError: the source cannot be read.
        StageError: the Hub does not answer.
    """
    settings = params.prepare
    if settings.source == "synthetic":
        return accept(generate(settings.synthetic), params.rewards.min_span_chars)
    bounds = Bounds(
        min_span_chars=params.rewards.min_span_chars,
        max_text_chars=params.validate_.max_text_chars,
        max_papers=params.validate_.max_papers,
        max_gold_papers=params.env.limits.max_children,
    )
    align, splits = settings.align, settings.splits
    try:
        with Counted("prepare") as progress:
            if settings.source == "hub":
                return hub.read(settings.hub, align, splits, bounds, progress.done)
            return files.read(settings.files, align, splits, bounds, progress.done)
    except SourceUnreachable as error:
        raise StageError(f"prepare: {error}") from None
    except SourceError as error:
        raise ConfigError(f"prepare: {error}") from None


def accept(candidates: Sequence[Problem], min_span_chars: int) -> Found:
    """Generated problems with all alternatives, and the rejected ones with their reasons.

    Args:
        candidates: the first of two that repeat each other stays.
        min_span_chars: shorter gold could never be found.
    """
    problems: list[Problem] = []
    rejected: list[Rejected] = []
    seen = Repetitions()
    for problem in candidates:
        reason = fault(problem, min_span_chars)
        told = (
            Rejected(problem.problem_id, "evidence", reason, "mend prepare.synthetic")
            if reason
            else seen.fault(problem.problem_id, problem)
        )
        if told:
            rejected.append(told)
        else:
            problems.append(add_alternatives(problem))
    return Found(problems, rejected)


def judge(params: Params, found: Found) -> None:
    """Refuse data that cannot be trained on.

    Raises:
        StageError: too many rows were rejected, or no problem is left in a split.
    """
    rejected = found.rejected_rows
    share = rejected / max(1, rejected + len(found.problems))
    if share > params.validate_.max_rejected:
        raise StageError(
            f"prepare: {rejected} of {rejected + len(found.problems)} rows were rejected, more "
            f"than validate.max_rejected {params.validate_.max_rejected:g}{_first(found)}"
        )
    filled = {problem.split for problem in found.problems}
    for split in SPLITS:
        if split not in filled:
            raise StageError(
                f"prepare: no problem in the split {split!r}, {rejected} were rejected; "
                f"{_more(params, found, split)}{_first(found)}"
            )


def _more(params: Params, found: Found, split: Split) -> str:
    """How an empty split gets problems."""
    if params.prepare.source == "synthetic":
        return f"raise prepare.synthetic.groups.{split}"
    groups = len({problem.group_id for problem in found.problems})
    return (
        f"{len(found.problems)} problems are {groups} groups that share no paper and no question, "
        "three are needed: add problems about other papers, or let each row name its own "
        "`documents`"
    )


def write_parquet(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Rows as strings; equal rows make equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, compression="zstd")


def describe(found: Found, rows: dict[Split, list[dict[str, str]]], source: str) -> dict[str, Any]:
    """The report: what the data is made of, as plain JSON values."""
    problems = found.problems
    splits = {}
    for split in SPLITS:
        members = [problem for problem in problems if problem.split == split]
        splits[split] = {
            "rows": len(members),
            "groups": len({problem.group_id for problem in members}),
            "content_sha256": content_hash(rows[split]),
            "difficulty_shares": _shares([problem.difficulty for problem in members]),
            "tier_shares": {
                difficulty: _shares(
                    [problem.tier for problem in members if problem.difficulty == difficulty]
                )
                for difficulty in sorted({problem.difficulty for problem in members})
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
        "quotes": found.quotes.as_dict(),
        "rejected": found.rejected_rows,
        "rejected_rows": [fault.as_dict() for fault in found.rejected],
        "left_out_documents": [fault.as_dict() for fault in found.left_out],
    }


def content_hash(rows: Sequence[dict[str, str]]) -> str:
    """SHA-256 of the rows as JSON lines: the same in every version of the file format."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def _shares(values: Sequence[str]) -> dict[str, float]:
    return {name: round(n / len(values), 4) for name, n in sorted(Counter(values).items())}


def _first(found: Found) -> str:
    """The first faults, one a line."""
    named = [f"\n  {fault}" for fault in found.rejected[:_NAMED]]
    more = len(found.rejected) - len(named)
    return "".join(named) + (f"\n  and {more} more" if more else "")
