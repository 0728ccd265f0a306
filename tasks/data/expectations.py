"""Great Expectations for the data: the expectations and their run.

`tasks/validate.py` makes three tables: `problems` (one row per problem, with derived columns),
`spans` (one row per gold span) and `shares` (one row per split, and per difficulty of it).
Importing this module imports Great Expectations, which takes seconds: do it inside the stage.
"""

# mypy: disable-error-code="attr-defined,name-defined"
# Great Expectations re-exports its classes implicitly.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.expectations.row_conditions import Column

from env.problems.schema import CANDIDATES, COLUMNS, Tier
from tasks.data.source import MAX_TEXT_CHARS

NAMED_ROWS = 20
"""Most rows that a failed check names; a list of all would embed the data in the report."""

DERIVED = (
    "file",
    "fault",
    "tier_of_gold",
    "splits_of_collection",
    "papers_elsewhere",
    "questions_elsewhere",
    "longest_paper_chars",
    "world_fault",
)
"""Columns that `tasks/validate.py` adds to those of the files."""

KEYS = {"problems": "problem_id", "spans": "span", "shares": "share_of"}
"""Column of each table that names a row."""


@dataclass(frozen=True)
class Bounds:
    """Limits of the data, from the settings."""

    difficulties: Sequence[str]
    min_span_chars: int
    min_rows: int
    candidates: bool = False
    """Whether each row has the column `candidates`."""


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


def _constant(column: str, value: int, description: str) -> gxe.Expectation:
    return gxe.ExpectColumnValuesToBeBetween(
        column=column, min_value=value, max_value=value, description=description
    )


def suites(bounds: Bounds) -> dict[str, list[gxe.Expectation]]:
    """Expectations on each table, each with a description."""
    columns = (*COLUMNS, CANDIDATES) if bounds.candidates else COLUMNS
    problems: list[gxe.Expectation] = [
        gxe.ExpectTableColumnsToMatchSet(
            column_set=[*columns, *DERIVED],
            exact_match=True,
            description="The columns of the files are those of the schema.",
        ),
        *(
            gxe.ExpectColumnValuesToNotBeNull(column=name, description=f"`{name}` is present.")
            for name in columns
        ),
        gxe.ExpectColumnValuesToBeNull(
            column="fault", description="A row is a problem by the schema; nothing is malformed."
        ),
        gxe.ExpectColumnValuesToBeNull(
            column="world_fault",
            description="In generated problems, the lexicon alone decides what is gold.",
        ),
        gxe.ExpectColumnValuesToBeUnique(
            column="problem_id", description="No `problem_id` occurs twice, in all files."
        ),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="split",
            column_B="file",
            description="A row is in the file of its split.",
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="difficulty",
            value_set=list(bounds.difficulties),
            description="The difficulty is one of the settings' levels.",
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="tier", value_set=list(get_args(Tier)), description="The tier is valid."
        ),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="tier",
            column_B="tier_of_gold",
            ignore_row_if="either_value_is_missing",
            description="The tier matches the number of gold papers.",
        ),
        _constant("splits_of_collection", 1, "No collection is in two splits."),
        _constant(
            "papers_elsewhere",
            0,
            "No paper occurs in two splits, nor a near-duplicate of it "
            "(prepare.splits.similar_papers), whatever its collection is called.",
        ),
        _constant(
            "questions_elsewhere",
            0,
            "No question is asked in two splits, in nearly the same words.",
        ),
        gxe.ExpectColumnValueLengthsToBeBetween(
            column="question", min_value=1, description="The question is not empty."
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="longest_paper_chars",
            min_value=1,
            max_value=MAX_TEXT_CHARS,
            description=f"A paper has text, and no more than {MAX_TEXT_CHARS} characters.",
        ),
    ]
    spans: list[gxe.Expectation] = [
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="text",
            column_B="slice",
            description="A gold text equals the slice of its paper.",
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="chars",
            min_value=bounds.min_span_chars,
            description="A gold text has at least rewards.min_span_chars characters.",
        ),
    ]
    shares: list[gxe.Expectation] = [
        gxe.ExpectColumnValuesToBeBetween(
            column="rows",
            min_value=bounds.min_rows,
            row_condition=Column("kind") == "split",
            description="Each split has at least validate.min_rows rows.",
        ),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A="share",
            column_B="least",
            or_equal=True,
            description="Each difficulty has at least validate.difficulty_share of its split.",
        ),
    ]
    return {"problems": problems, "spans": spans, "shares": shares}


def run_checks(tables: Mapping[str, pd.DataFrame], bounds: Bounds) -> list[Check]:
    """Run every expectation.

    Args:
        tables: tables `problems`, `spans` and `shares`, with the columns that `suites` names.
        bounds: limits from the settings.

    Returns:
        One check per expectation, in order.
    """
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    checks = []
    for table, expectations in suites(bounds).items():
        source = context.data_sources.add_pandas(table)
        batches = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")
        suite = context.suites.add(gx.ExpectationSuite(name=table, expectations=expectations))
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name=table, data=batches, suite=suite)
        )
        results = definition.run(
            batch_parameters={"dataframe": tables[table]},
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
    if not values and details.get("observed_value") is not None:
        values = [str(details["observed_value"])]
    return Check(
        table=table,
        expectation=config.get("description") or config["type"],
        columns=", ".join(columns),
        success=bool(result["success"]),
        unexpected=int(details.get("unexpected_count") or 0),
        rows=list(dict.fromkeys(named)),
        found="; ".join(list(dict.fromkeys(values))[:3]),
    )
