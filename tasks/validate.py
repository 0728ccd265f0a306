"""Stage `validate`: check the data with Great Expectations; a failed check stops the chain.

Reads the files of `prepare`. Writes reports/validation.json (each check with the rows that failed
it) and the page reports/data_docs/index.html, also after a failed check.
`tasks/data/expectations.py` has the expectations.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd
from pydantic import ValidationError

from env.problems import fields
from env.problems.schema import Problem, from_row, tier_of
from tasks import paths
from tasks.config.params import Params
from tasks.data.split import LinkKind, leaks
from tasks.errors import StageError
from tasks.io import require, write_json, write_text
from tasks.prepare import SPLITS
from tasks.reporting.html import page

if TYPE_CHECKING:
    from tasks.data.expectations import Check
    from tasks.tracking.runs import StageRun

DOCS = Path("reports/data_docs")
REPORT = Path("reports/validation.json")

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Check the data; returns the report's path.

    Raises:
        StageError: a file is missing or unreadable, or a check failed; the message names rows.
    """
    files = read_splits(paths.PROBLEMS)
    tables = tabulate(files, params)
    rows = {split: len(frame) for split, frame in files.items()}
    from tasks.data.expectations import run_checks, suites

    least_chars, least_rows = params.rewards.min_span_chars, params.validate_.min_rows
    generated = params.prepare.source == "synthetic"
    expected = suites(params.prepare.levels, least_chars, least_rows, generated)
    checks = run_checks(tables, expected)
    by_table = {name: [check for check in checks if check.table == name] for name in tables}
    write_text(
        DOCS / "index.html",
        page("checks.html").render(tables=by_table, rows=rows, profile=params.profile),
    )
    failed = [check for check in checks if not check.success]
    report = {"success": not failed, "rows": rows, "checks": [*map(vars, checks)]}
    run.log_metrics({"data/checks": len(checks), "data/failed_checks": len(failed)})
    run.log_artifact(write_json(REPORT, report))
    run.log_artifact(DOCS)
    if failed:
        raise StageError(complaint(failed, len(checks)))
    logger.info("validate: %d checks passed", len(checks))
    return REPORT


def read_splits(folder: Path) -> dict[str, pd.DataFrame]:
    """Rows of the file of each split.

    Raises:
        StageError: a file is missing or not valid Parquet.
    """
    files: dict[str, pd.DataFrame] = {}
    for split in SPLITS:
        path = folder / f"{split}.parquet"
        require(path, "prepare")
        try:
            files[split] = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise StageError(
                f"{path} is not readable as Parquet ({error}). Run the stage prepare again."
            ) from None
    return files


def _parse(row: Mapping[str, Any]) -> tuple[Problem | None, str | None]:
    """The problem of a row, or its fault."""
    try:
        return from_row(row), None
    except ValidationError as error:
        first = error.errors()[0]
        return None, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError as error:
        return None, str(error)


def tabulate(files: Mapping[str, pd.DataFrame], params: Params) -> dict[str, pd.DataFrame]:
    """Tables for the expectations: `problems`, `spans` and `shares`.

    Invalid rows stay in `problems` with their `fault`. Their derived columns are empty, and other
    checks ignore them.
    """
    rows = pd.concat([frame.assign(file=split) for split, frame in files.items()])
    records: list[dict[str, Any]] = rows.to_dict("records")
    parsed = [_parse(row) for row in records]
    whole = [
        problem.model_copy(update={"split": row["file"]})
        for row, (problem, _) in zip(records, parsed, strict=True)
        if problem
    ]
    links = Counter(
        (leak.kind, name)
        for leak in leaks(whole, params.prepare.splits)
        for name in (leak.first, leak.second)
    )
    generated, lexicon = params.prepare.source == "synthetic", params.prepare.synthetic.lexicon
    for row, (problem, fault) in zip(records, parsed, strict=True):
        row |= {"fault": fault, "world_fault": None, "tier_of_gold": None}
        row["longest_paper_chars"] = None
        for kind in get_args(LinkKind):
            row[f"{kind}s_elsewhere"] = links[kind, str(row.get("problem_id"))]
        if problem:
            row["tier_of_gold"] = tier_of(len(problem.gold_papers))
            row["longest_paper_chars"] = max(len(paper.text) for paper in problem.papers)
            row["world_fault"] = fields.fault(problem, lexicon) if generated else None
    problems = pd.DataFrame(records)
    return {"problems": problems, "spans": span_table(whole), "shares": share_table(files, params)}


def span_table(problems: Sequence[Problem]) -> pd.DataFrame:
    """A row per gold span: its name, its text, and the text of the paper at its place."""
    rows = []
    for problem in problems:
        texts = problem.texts
        for fact in problem.evidence:
            for span in fact.spans:
                place = f"{span.paper_id}[{span.start}:{span.end}]"
                excerpt = texts.get(span.paper_id, "")[span.start : span.end]
                name = f"{problem.problem_id} {fact.fact_id} {place}"
                rows.append((name, span.text, excerpt, len(span.text)))
    return pd.DataFrame(rows, columns=["span", "text", "slice", "chars"])


def share_table(files: Mapping[str, pd.DataFrame], params: Params) -> pd.DataFrame:
    """Rows of each split, and shares of the difficulties in it, with their minimum."""
    least = params.validate_.difficulty_share
    rows: list[tuple[str, str, int, float, float]] = []
    for split in SPLITS:
        frame = files[split]
        counts = Counter(frame.get("difficulty", []))
        rows.append((split, "split", len(frame), 1.0, 0.0))
        for difficulty in params.prepare.levels_of(split):
            share = counts[difficulty] / max(1, len(frame))
            rows.append((f"{split}/{difficulty}", "difficulty", counts[difficulty], share, least))
    return pd.DataFrame(rows, columns=["share_of", "kind", "rows", "share", "least"])


def complaint(failed: Sequence[Check], checks: int) -> str:
    """One error message for all failed checks, with rows and a fix."""
    lines = [f"{len(failed)} of {checks} checks failed; see {DOCS}/index.html"]
    for check in failed:
        rows = ", ".join(check.rows[:5]) + (", ..." if len(check.rows) > 5 else "")
        where = f"{check.table}: {check.columns}" if check.columns else check.table
        lines.append(
            f"  {check.expectation} ({where}): "
            + (f"{check.unexpected} unexpected, rows {rows}: " if rows else "")
            + f"found {check.found}"
        )
    lines.append("  Correct the source or the settings of prepare, and run prepare again.")
    return "\n".join(lines)
