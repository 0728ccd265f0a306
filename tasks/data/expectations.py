"""Great Expectations for the data: the expectations and their run.

`tasks/validate.py` makes two tables: `problems` (one row per problem, with derived columns) and
`splits` (one row per split, with what it lacks).
Importing this module imports Great Expectations, which takes seconds: do it inside the stage.
"""

# mypy: disable-error-code="attr-defined,name-defined"
# Great Expectations re-exports its classes implicitly.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.data_context.types.base import ProgressBarsConfig

from env.problems.schema import CANDIDATES, COLUMNS

NAMED_ROWS = 20
"""Most rows that a failed check names; a list of all would embed the data in the report."""

FAULTS = {
    "fault": "A row is a problem by the schema, and its gold is in its papers.",
    "world_fault": "In generated problems, the lexicon alone decides what is gold.",
    "leaking_collection": "No collection is in two splits.",
    "leaking_paper": "No paper occurs in two splits, nor a near-duplicate of it "
    "(prepare.splits.similar_papers), whatever its collection is called.",
    "leaking_question": "No question is asked in two splits, in nearly the same words.",
    "lack": "Each split has at least validate.min_rows rows, and "
    "validate.difficulty_share of each difficulty.",
}
"""Columns that `tasks/validate.py` adds, and what is true of a row where one is empty."""

KEYS = {"problems": "problem_id", "splits": "split"}
"""Column of each table that names a row."""


@dataclass(frozen=True)
class Check:
    """Outcome of one expectation on one table."""

    table: str
    expectation: str
    columns: str
    success: bool
    unexpected: int
    rows: list[str]
    """Names of the first unexpected rows."""
    found: str
    """First unexpected values, or the observed value where no row is at fault."""


def suites(levels: Sequence[str], generated: bool) -> dict[str, list[gxe.Expectation]]:
    """Expectations on each table, each with a description.

    Args:
        levels: difficulties that a problem may have.
        generated: whether each row has the column `candidates`.
    """
    columns = (*COLUMNS, CANDIDATES) if generated else COLUMNS
    *faults, lack = (
        gxe.ExpectColumnValuesToBeNull(column=column, description=description)
        for column, description in FAULTS.items()
    )
    problems = [
        gxe.ExpectTableColumnsToMatchSet(
            column_set=[*columns, "file", *(one.column for one in faults)],
            description="The columns of the files are those of the schema.",
        ),
        *faults,
        gxe.ExpectColumnValuesToBeUnique(
            column="problem_id", description="No `problem_id` occurs twice, in all files."
        ),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="split", column_B="file", description="A row is in the file of its split."
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="difficulty",
            value_set=list(levels),
            description="The difficulty is one of the settings' levels.",
        ),
    ]
    return {"problems": problems, "splits": [lack]}


def run_checks(
    tables: Mapping[str, pd.DataFrame], suites: Mapping[str, list[gxe.Expectation]]
) -> list[Check]:
    """Run every expectation on the table of its name; returns one check for each, in order."""
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    checks = []
    for table, expectations in suites.items():
        source = context.data_sources.add_pandas(table)
        batches = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
        results = batches.get_batch({"dataframe": tables[table]}).validate(
            gx.ExpectationSuite(name=table, expectations=expectations),
            result_format={
                "result_format": "SUMMARY",
                "unexpected_index_column_names": [KEYS[table]],
                "partial_unexpected_count": NAMED_ROWS,
            },
        )
        checks += [_check(table, result.to_json_dict()) for result in results.results]
    return checks


def _check(table: str, result: Mapping[str, Any]) -> Check:
    """The check that a result of Great Expectations describes."""
    config = result["expectation_config"]
    kwargs = config["kwargs"]
    columns = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    details = result["result"]
    named = [str(row[KEYS[table]]) for row in details.get("partial_unexpected_index_list") or []]
    # A failed run gives its reason directly or under a key per metric.
    failures = result.get("exception_info") or {}
    nested = [failures, *(value for value in failures.values() if isinstance(value, dict))]
    values = [str(one["exception_message"]) for one in nested if one.get("exception_message")]
    values += [str(value)[:80] for value in details.get("partial_unexpected_list") or []]
    values = values or [str(details.get("observed_value", ""))]
    return Check(
        table=table,
        expectation=config.get("description") or config["type"],
        columns=", ".join(columns),
        success=bool(result["success"]),
        unexpected=int(details.get("unexpected_count") or 0),
        rows=list(dict.fromkeys(named)),
        found="; ".join(list(dict.fromkeys(values))[:3]),
    )
