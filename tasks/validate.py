"""Stage `validate`: Great Expectations on the data; a failed check stops the chain.

Reads what `prepare` wrote. Writes reports/validation.json (each check, with the rows that broke
it) and the Data Docs page reports/data_docs/index.html, of a failed run as well. The expectations
themselves are in `tasks/expectations.py`.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import ValidationError

from env.problems.schema import Problem, from_row, tier_of
from env.problems.settings import LevelSettings
from env.problems.splits import leaks
from tasks.config import Params
from tasks.data_docs import finish
from tasks.errors import StageError
from tasks.outputs import replacing, write_json
from tasks.prepare import PROBLEMS, SPLITS

if TYPE_CHECKING:
    from tasks.expectations import Check
    from tasks.tracking import StageRun

DOCS = Path("reports/data_docs")
REPORT = Path("reports/validation.json")

logger = logging.getLogger(__name__)


def run(params: Params, run: StageRun) -> Path:
    """Check the data; returns the report's path.

    Raises:
        StageError: a file is missing or unreadable, or a check failed; the message names rows.
    """
    files = read(PROBLEMS)
    tables = tabulate(files, params)
    from tasks.expectations import Bounds, run_checks

    bounds = Bounds(
        difficulties=params.prepare.levels,
        min_span_chars=params.rewards.min_span_chars,
        max_text_chars=params.validate_.max_text_chars,
        min_rows=params.validate_.min_rows,
    )
    with replacing(DOCS) as site:
        site.mkdir()
        checks = run_checks(tables, bounds, site)
        finish(site, checks, {split: len(frame) for split, frame in files.items()}, params.profile)
    failed = [check for check in checks if not check.success]
    write_json(
        REPORT,
        {
            "success": not failed,
            "rows": {split: len(frame) for split, frame in files.items()},
            "checks": [check.as_dict() for check in checks],
        },
    )
    run.log_metrics({"data/checks": len(checks), "data/failed_checks": len(failed)})
    run.log_artifact(REPORT)
    run.log_artifact(DOCS)
    if failed:
        raise StageError(complaint(failed, len(checks)))
    logger.info("validate: %d checks passed", len(checks))
    return REPORT


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """The rows of each split's file.

    Raises:
        StageError: a file is missing or no Parquet.
    """
    files: dict[str, pd.DataFrame] = {}
    for split in SPLITS:
        path = folder / f"{split}.parquet"
        if not path.is_file():
            raise StageError(f"validate: {path} is missing; run the stage prepare first")
        try:
            files[split] = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise StageError(
                f"validate: {path} is not readable as Parquet ({error}); run prepare again"
            ) from None
    return files


def _parse(row: Mapping[str, Any]) -> tuple[Problem | None, str | None]:
    """The problem of a row, or what is wrong with it in a few words."""
    try:
        return from_row(row), None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, f"{where}: {first['msg']}"
    except ValueError as error:
        return None, str(error)


def tabulate(files: Mapping[str, pd.DataFrame], params: Params) -> dict[str, pd.DataFrame]:
    """The tables that the expectations read: `problems`, `spans`, `shares`.

    Rows that are no problem keep their place in `problems`, with their `fault` said; what cannot
    be derived of them stays empty, and other checks pass over it.
    """
    problems = pd.concat(
        [frame.assign(file=split) for split, frame in files.items()], ignore_index=True
    )
    records: list[dict[str, Any]] = problems.to_dict("records")
    parsed = [_parse(row) for row in records]

    splits_of_group: dict[str, set[str]] = defaultdict(set)
    for row in records:
        splits_of_group[str(row.get("group_id"))].add(row["file"])
    whole = [
        problem.model_copy(update={"split": row["file"]})
        for row, (problem, _) in zip(records, parsed, strict=True)
        if problem
    ]
    found = leaks(whole, params.prepare.splits)

    problems["fault"] = pd.Series([why for _, why in parsed], dtype=object)
    problems["tier_of_gold"] = [_tier(problem) for problem, _ in parsed]
    problems["splits_of_group"] = [
        len(splits_of_group[str(row.get("group_id"))]) for row in records
    ]
    for kind in ("paper", "question"):
        leaking = Counter(
            name for leak in found if leak.kind == kind for name in (leak.first, leak.second)
        )
        problems[f"{kind}s_elsewhere"] = [leaking[str(row.get("problem_id"))] for row in records]
    problems["longest_paper_chars"] = [
        max(len(paper.text) for paper in problem.papers) if problem else None
        for problem, _ in parsed
    ]
    return {
        "problems": problems,
        "spans": span_table(whole),
        "shares": share_table(files, params),
    }


def _tier(problem: Problem | None) -> str | None:
    return tier_of(len(problem.gold_papers)) if problem else None


def span_table(problems: Sequence[Problem]) -> pd.DataFrame:
    """A row for each gold span: its name, its text, and what stands at its place."""
    rows = []
    for problem in problems:
        texts = {paper.paper_id: paper.text for paper in problem.papers}
        canaries = {paper.paper_id for paper in problem.papers if paper.canary}
        for fact in problem.evidence:
            for span in fact.spans:
                rows.append(
                    {
                        "span": f"{problem.problem_id} {fact.fact_id} "
                        f"{span.paper_id}[{span.start}:{span.end}]",
                        "text": span.text,
                        "slice": texts.get(span.paper_id, "")[span.start : span.end],
                        "chars": len(span.text),
                        "canary": int(span.paper_id in canaries),
                    }
                )
    return pd.DataFrame(rows, columns=["span", "text", "slice", "chars", "canary"])


def _reachable_tiers(level: LevelSettings) -> set[str]:
    return {tier_of(gold) for gold in range(1, level.max_gold + 1)}


def share_table(files: Mapping[str, pd.DataFrame], params: Params) -> pd.DataFrame:
    """Shares of difficulties in a split, and of tiers in a difficulty, with their least values.

    Which tiers a difficulty has is a promise of the synthetic source's settings alone.
    """
    synthetic = params.prepare.source == "synthetic"
    levels = params.prepare.synthetic.levels if synthetic else {}
    tiers = {name: _reachable_tiers(level) for name, level in levels.items()}
    rows: list[dict[str, Any]] = []
    for split, frame in files.items():
        counts = Counter(zip(frame.get("difficulty", []), frame.get("tier", []), strict=True))
        rows.append(
            {"share_of": split, "kind": "split", "rows": len(frame), "share": 1.0, "least": 0.0}
        )
        for difficulty in params.prepare.levels:
            of_level = sum(n for (name, _), n in counts.items() if name == difficulty)
            rows.append(
                {
                    "share_of": f"{split}/{difficulty}",
                    "kind": "difficulty",
                    "rows": of_level,
                    "share": of_level / max(1, len(frame)),
                    "least": params.validate_.difficulty_share,
                }
            )
            rows += [
                {
                    "share_of": f"{split}/{difficulty}/{tier}",
                    "kind": "tier",
                    "rows": counts[difficulty, tier],
                    "share": counts[difficulty, tier] / max(1, of_level),
                    "least": params.validate_.tier_share,
                }
                for tier in sorted(tiers.get(difficulty, ()))
            ]
    return pd.DataFrame(rows)


def complaint(failed: Sequence[Check], checks: int) -> str:
    """One message for all failed checks: what, which rows, how to mend it."""
    lines = [f"validate: {len(failed)} of {checks} checks failed; see {DOCS}/index.html"]
    for check in failed:
        rows = ", ".join(check.rows[:5]) + (", ..." if len(check.rows) > 5 else "")
        where = f"{check.table}: {check.columns}" if check.columns else check.table
        lines.append(
            f"  {check.expectation} ({where}): "
            + (f"{check.unexpected} unexpected, rows {rows}: " if rows else "")
            + f"found {check.found}"
        )
    lines.append("  mend the source or the settings of prepare, and run prepare again")
    return "\n".join(lines)
