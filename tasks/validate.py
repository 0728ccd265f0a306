"""Stage `validate`: check the data with Great Expectations; a failed check stops the chain.

Reads the files of `prepare`. Writes reports/validation.json (each check with the rows that failed
it) and the page reports/data_docs/index.html, also after a failed check.
`tasks/data/expectations.py` has the expectations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd
from pydantic import ValidationError

from env.problems import fields
from env.problems.schema import Problem, from_row, tier_of
from tasks import paths
from tasks.config.params import Params
from tasks.data.rows import MAX_TEXT_CHARS
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

    checks = run_checks(tables, suites(params.prepare.levels, params.prepare.source == "synthetic"))
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
                f"{path} is not readable as Parquet ({error}). Run `rlm prepare` again."
            ) from None
    return files


def tabulate(files: Mapping[str, pd.DataFrame], params: Params) -> dict[str, pd.DataFrame]:
    """Tables for the expectations: `problems` and `splits`.

    Invalid rows stay in `problems` with their `fault`, and other checks ignore them.
    """
    rows = pd.concat([frame.assign(file=split) for split, frame in files.items()])
    records: list[dict[str, Any]] = rows.to_dict("records")
    lexicon, whole = params.prepare.synthetic.lexicon, list[Problem]()
    for row in records:
        row |= {"fault": None, "world_fault": None}
        try:
            problem = from_row(row)
            whole.append(problem.model_copy(update={"split": row["file"]}))
            row["fault"] = gold_fault(problem, params.rewards.min_span_chars)
            if params.prepare.source == "synthetic":
                row["world_fault"] = fields.field_fault(problem, lexicon)
        except ValidationError as error:
            first = error.errors()[0]
            row["fault"] = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except ValueError as error:
            row["fault"] = str(error)
    others: dict[tuple[str, str], str] = {}
    for leak in leaks(whole, params.prepare.splits):
        others |= {(leak.kind, leak.first): leak.second, (leak.kind, leak.second): leak.first}
    for row, kind in product(records, get_args(LinkKind)):
        row[f"leaking_{kind}"] = others.get((kind, str(row.get("problem_id"))))
    rule, named = params.validate_, params.prepare.levels
    levels = {split: files[split].get("difficulty", []) for split in SPLITS}
    lacks = [(split, rule.lack(some, named)) for split, some in levels.items()]
    splits = pd.DataFrame(lacks, columns=["split", "lack"], dtype=object)
    return {"problems": pd.DataFrame(records), "splits": splits}


def gold_fault(problem: Problem, min_span_chars: int) -> str | None:
    """Reason why a problem of the schema can't be solved or isn't counted right; or None."""
    texts = problem.texts
    if problem.tier != (tier := tier_of(len(problem.gold_papers))):
        return f"the tier is {problem.tier}, but its gold papers make it {tier}"
    if (longest := max(map(len, texts.values()))) > MAX_TEXT_CHARS:
        return f"a paper has {longest} characters, more than {MAX_TEXT_CHARS}"
    for fact in problem.evidence:
        for span in fact.spans:
            where = f"{fact.fact_id}: {span.paper_id}[{span.start}:{span.end}]"
            if texts.get(span.paper_id, "")[span.start : span.end] != span.text:
                return f"{where} is not the gold text"
            if len(span.text) < min_span_chars:
                return f"{where} is shorter than rewards.min_span_chars ({min_span_chars})"
    return None


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
