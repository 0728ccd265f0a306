"""Great Expectations for the data: which checks there are, how they run, their Data Docs page.

Three tables: `problems` (a row each, with what was derived of it), `spans` (a row for each gold
span) and `shares` (a row for each tier and difficulty of a split). `tasks/validate.py` makes
them. Importing this module imports Great Expectations (seconds): do it inside the stage.
"""

# mypy: disable-error-code="attr-defined,name-defined"
# Great Expectations re-exports its classes without saying so.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import ColumnPairMapExpectation
from great_expectations.expectations.metrics.map_metric_provider import (
    ColumnPairMapMetricProvider,
    column_pair_condition_partial,
)
from great_expectations.expectations.row_conditions import Column

from env.problems.schema import COLUMNS, Tier

NAMED_ROWS = 20
"""Rows that a failed check names, at most; a list of all would embed the data in the page."""

DERIVED = (
    "file",
    "fault",
    "tier_of_gold",
    "splits_of_group",
    "papers_elsewhere",
    "questions_elsewhere",
    "longest_paper_chars",
)
"""Columns that `tasks/validate.py` adds to those of the files."""

KEYS = {"problems": "problem_id", "spans": "span", "shares": "share_of"}
"""For each table the column that names a row."""


@dataclass(frozen=True)
class Bounds:
    """What the data has to keep to, from the settings."""

    difficulties: Sequence[str]
    min_span_chars: int
    max_text_chars: int
    min_rows: int


@dataclass(frozen=True)
class Check:
    """The outcome of one expectation on one table."""

    table: str
    expectation: str
    columns: str
    success: bool
    unexpected: int
    rows: list[str]
    """Names of the first unexpected rows."""
    found: str
    """The first unexpected values, or what was observed where no row is to blame."""

    def as_dict(self) -> dict[str, Any]:
        """For a report."""
        return asdict(self)


class GoldIsSliceMetric(ColumnPairMapMetricProvider):
    """True where the gold text is what stands at its place, and something stands there."""

    condition_metric_name = "column_pair_values.gold_is_slice"
    condition_domain_keys = (
        "batch_id",
        "table",
        "column_A",
        "column_B",
        "row_condition",
        "condition_parser",
        "ignore_row_if",
    )
    condition_value_keys = ()

    @column_pair_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column_A: Any, column_B: Any, **kwargs: Any) -> Any:
        return (column_A == column_B) & (column_A.str.len() > 0)


class ExpectGoldToBeExactSlice(ColumnPairMapExpectation):
    """Expect each gold text (column_A) to be exactly what its paper holds there (column_B)."""

    map_metric = "column_pair_values.gold_is_slice"
    success_keys = ("column_A", "column_B", "ignore_row_if", "mostly")
    args_keys = ("column_A", "column_B")
    ignore_row_if: str = "neither"


def suites(bounds: Bounds) -> dict[str, list[gxe.Expectation]]:
    """The expectations on each table; each says in a sentence what it holds."""
    problems: list[gxe.Expectation] = [
        gxe.ExpectTableColumnsToMatchSet(
            column_set=[*COLUMNS, *DERIVED],
            exact_match=True,
            description="The columns of the files are those of the schema.",
        ),
        *(
            gxe.ExpectColumnValuesToNotBeNull(column=name, description=f"`{name}` is there.")
            for name in COLUMNS
        ),
        gxe.ExpectColumnValuesToBeNull(
            column="fault", description="A row is a problem by the schema; nothing is malformed."
        ),
        gxe.ExpectColumnValuesToBeUnique(
            column="problem_id", description="No `problem_id` occurs twice, in all files."
        ),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="split",
            column_B="file",
            description="A row lies in the file of its split.",
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="difficulty",
            value_set=list(bounds.difficulties),
            description="The difficulty is one of the settings' levels.",
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="tier", value_set=list(get_args(Tier)), description="The tier is a known one."
        ),
        gxe.ExpectColumnPairValuesToBeEqual(
            column_A="tier",
            column_B="tier_of_gold",
            ignore_row_if="either_value_is_missing",
            description="The tier is that of the number of gold papers.",
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="splits_of_group",
            min_value=1,
            max_value=1,
            description="No group lies in two splits.",
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="papers_elsewhere",
            min_value=0,
            max_value=0,
            description="No paper occurs in two splits, nor a near-duplicate of it "
            "(prepare.splits.similar_papers), whatever its group is called.",
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="questions_elsewhere",
            min_value=0,
            max_value=0,
            description="No question is asked in two splits, in nearly the same words "
            "(prepare.splits.similar_questions).",
        ),
        gxe.ExpectColumnValueLengthsToBeBetween(
            column="question", min_value=1, description="The question is not empty."
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="longest_paper_chars",
            min_value=1,
            max_value=bounds.max_text_chars,
            description="A paper has text, and no more than validate.max_text_chars.",
        ),
    ]
    spans: list[gxe.Expectation] = [
        ExpectGoldToBeExactSlice(
            column_A="text",
            column_B="slice",
            description="A gold text is exactly what its paper holds at its place.",
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="chars",
            min_value=bounds.min_span_chars,
            description="A gold text has at least rewards.min_span_chars characters.",
        ),
        gxe.ExpectColumnValuesToBeBetween(
            column="canary",
            min_value=0,
            max_value=0,
            description="No gold stands in a paper that tells its reader what to answer.",
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
            description="Each difficulty of a split, and each tier that a difficulty can have, "
            "holds its least share of the rows.",
        ),
    ]
    return {"problems": problems, "spans": spans, "shares": shares}


def run_checks(tables: Mapping[str, pd.DataFrame], bounds: Bounds, site: Path) -> list[Check]:
    """Run every expectation and build the Data Docs page.

    Args:
        tables: `problems`, `spans` and `shares`, with the columns that `suites` names.
        bounds: from the settings.
        site: folder that receives the page (index.html).

    Returns:
        One check for each expectation, in order.
    """
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.add_data_docs_site(
        "local",
        {
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {
                "class_name": "TupleFilesystemStoreBackend",
                "base_directory": str(site.resolve()),
            },
        },
    )
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
    context.build_data_docs()
    return checks


def _check(table: str, result: Mapping[str, Any]) -> Check:
    """A plain record of one result of Great Expectations."""
    config = result["expectation_config"]
    kwargs = config["kwargs"]
    columns = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    details = result["result"]
    named = [str(row[KEYS[table]]) for row in details.get("partial_unexpected_index_list") or []]
    # A check that could not run says why under a key per metric, or directly.
    failures = result.get("exception_info") or {}
    nested = [failures, *(value for value in failures.values() if isinstance(value, dict))]
    found = [str(one["exception_message"]) for one in nested if one.get("exception_message")]
    found += [str(value)[:80] for value in details.get("partial_unexpected_list") or []]
    if not found and details.get("observed_value") is not None:
        found = [str(details["observed_value"])]
    return Check(
        table=table,
        expectation=config.get("description") or config["type"],
        columns=", ".join(columns),
        success=bool(result["success"]),
        unexpected=int(details.get("unexpected_count") or 0),
        rows=list(dict.fromkeys(named)),
        found="; ".join(list(dict.fromkeys(found))[:3]),
    )
