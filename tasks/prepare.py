"""Stage `prepare`: problems from their source, completed, checked and split by group.

Every exact further occurrence of a gold text becomes an alternative of its fact. A problem whose
reward nobody could earn is rejected, with the reason in the report.

Writes data/problems/{train,validation,test}.parquet (columns: `env.problems.schema.COLUMNS`) and
data/report.json: rows, groups, shares and a hash of the content for each split, and what was
rejected.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from env.problems.align import add_alternatives, fault
from env.problems.schema import COLUMNS, Problem, Split, to_row
from env.problems.synthetic import generate
from tasks.config import Params
from tasks.errors import StageError
from tasks.outputs import replacing, write_json

if TYPE_CHECKING:
    from tasks.tracking import StageRun

PROBLEMS = Path("data/problems")
REPORT = Path("data/report.json")

SPLITS: tuple[Split, ...] = get_args(Split)

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Write the problems and their report; returns the folder of the problems.

    Raises:
        StageError: no problem is left in a split.
    """
    problems, rejected = accept(generate(params.prepare.synthetic), params.rewards.min_span_chars)
    rows = {
        split: [to_row(problem) for problem in problems if problem.split == split]
        for split in SPLITS
    }
    report = describe(problems, rows, rejected, params.prepare.source)
    for split in SPLITS:
        if not rows[split]:
            raise StageError(
                f"prepare: no problem in the split {split!r}, {len(rejected)} were rejected"
                f"{_first(rejected)}; raise prepare.synthetic.groups.{split}"
            )
    with replacing(PROBLEMS) as folder:
        folder.mkdir()
        for split in SPLITS:
            write_parquet(folder / f"{split}.parquet", rows[split])
    write_json(REPORT, report)
    run.log_metrics(
        {f"data/{split}_rows": len(rows[split]) for split in SPLITS}
        | {"data/rejected_rows": len(rejected)}
    )
    run.log_artifact(REPORT)
    logger.info("prepare: %d problems, %d rejected", len(problems), len(rejected))
    return PROBLEMS


def accept(
    candidates: Sequence[Problem], min_span_chars: int
) -> tuple[list[Problem], list[dict[str, str]]]:
    """Problems with all alternatives, and the rejected ones as {problem_id, reason}.

    Args:
        candidates: problems of a source; the first of two that repeat each other stays.
        min_span_chars: shorter gold could never be found.
    """
    problems: list[Problem] = []
    rejected: list[dict[str, str]] = []
    ids: set[str] = set()
    asked: set[tuple[str, str]] = set()
    for problem in candidates:
        reason = fault(problem, min_span_chars)
        if problem.problem_id in ids:
            reason = "its problem_id was there before"
        elif (problem.group_id, problem.question) in asked:
            reason = "its group holds the same question already"
        if reason:
            rejected.append({"problem_id": problem.problem_id, "reason": reason})
            continue
        ids.add(problem.problem_id)
        asked.add((problem.group_id, problem.question))
        problems.append(add_alternatives(problem))
    return problems, rejected


def write_parquet(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Rows as strings; equal rows make equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, compression="zstd")


def describe(
    problems: Sequence[Problem],
    rows: dict[Split, list[dict[str, str]]],
    rejected: Sequence[dict[str, str]],
    source: str,
) -> dict[str, Any]:
    """The report: what the data is made of, as plain JSON values."""
    splits = {}
    for split in SPLITS:
        members = [problem for problem in problems if problem.split == split]
        splits[split] = {
            "rows": len(members),
            "groups": len({problem.group_id for problem in members}),
            "content_sha256": _content_hash(rows[split]),
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
        "rejected": len(rejected),
        "rejected_rows": list(rejected),
    }


def _content_hash(rows: Sequence[dict[str, str]]) -> str:
    """SHA-256 of the rows as JSON lines: the same in every version of the file format."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def _shares(values: Sequence[str]) -> dict[str, float]:
    return {name: round(n / len(values), 4) for name, n in sorted(Counter(values).items())}


def _first(rejected: Sequence[dict[str, str]]) -> str:
    return f" ({rejected[0]['problem_id']}: {rejected[0]['reason']}, ...)" if rejected else ""
