"""The source `hub`: a data set of the form of `alphaXiv/multi-paper-synthetic`.

Columns: `question`; `papers`, a list of {paperId, title, abstract, text}; `evidence`, a list of
{paperId, selections: [{text}]}; the two lists may be JSON text. Each selection is a fact, and
the difficulty follows from the tier. Read by the `datasets` library from the Hub, or from a local
file or folder of that form. The token comes from the environment variable HF_TOKEN alone.
Neighbours: `drafts.py` locates the selections, `splits.py` deals out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from env.errors import SourceError, SourceUnreachable
from env.problems.drafts import Draft, Outcome, Place, complete
from env.problems.files import gather
from env.problems.row_schema import Filled, Text, faults
from env.problems.schema import Paper
from env.problems.settings import AlignSettings, HubSettings, SplitSettings
from env.problems.source import Bounds, Found, Progress, Rejected
from env.problems.tables import parse_json

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")

COLUMNS = ("question", "papers", "evidence")
_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_TELEMETRY_OFF = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
_WAIT_S = 1.0
"""Before the second try; doubles from try to try."""
_LIMIT_S = 30.0
"""Of one question to the Hub."""


class _Part(BaseModel):
    # Further keys are the data set's own business.
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _PaperOf(_Part):
    paperId: Filled
    title: Text | None = None
    abstract: Text | None = None
    text: Filled


class _Selection(_Part):
    text: Filled


class _EvidenceOf(_Part):
    paperId: Filled
    selections: Annotated[list[_Selection], Field(min_length=1)]


class _RowOf(_Part):
    question: Filled
    papers: Annotated[list[_PaperOf], Field(min_length=1)]
    evidence: Annotated[list[_EvidenceOf], Field(min_length=1)]


def read(
    settings: HubSettings,
    align: AlignSettings,
    splits: SplitSettings,
    bounds: Bounds,
    progress: Progress | None = None,
) -> Found:
    """All problems of the data set, dealt to their splits, and every row that is none.

    Raises:
        SourceError: there is no such data set, it may not be read, or its columns are others.
        SourceUnreachable: the Hub did not answer.
    """
    table = load(settings)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise SourceError(
            f"{settings.name}: has no column {', '.join(map(repr, missing))}, only "
            f"{', '.join(map(repr, table.column_names))}; prepare.hub.name takes data sets of the "
            "form of alphaXiv/multi-paper-synthetic, docs/own_data.md"
        )
    outcomes = []
    for number, (row, data) in enumerate(_rows(table, Path(settings.name).name), 1):
        draft = _draft(row, data)
        if isinstance(draft, Draft):
            outcomes.append(complete(draft, bounds, align.min_similarity))
        else:
            outcomes.append(Outcome(row, faults=draft))
        if progress is not None:
            progress(number)
    return gather(outcomes, splits)


def _rows(table: Dataset, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, data in enumerate(table.select_columns(list(COLUMNS)), 1):
        yield f"{name}:{number}", data


def _draft(row: str, data: dict[str, Any]) -> Draft | list[Rejected]:
    """The row with its types checked, or its faults."""
    values = dict(data)
    for name in COLUMNS[1:]:
        if isinstance(values[name], str):
            try:
                values[name] = parse_json(values[name])
            except ValueError as error:
                remedy = f"write {name} as a JSON list"
                return [Rejected(row, name, str(error), remedy)]
    try:
        parsed = _RowOf.model_validate(values)
    except ValidationError as error:
        return faults(row, error, lambda path: COLUMNS)
    return Draft(
        row=row,
        question=parsed.question,
        papers=[
            Paper(
                paper_id=paper.paperId,
                title=paper.title or "",
                abstract=paper.abstract or "",
                text=paper.text,
            )
            for paper in parsed.papers
        ],
        facts=[
            [Place(f"evidence[{i}].selections[{j}]", one.paperId, selection.text)]
            for i, one in enumerate(parsed.evidence)
            for j, selection in enumerate(one.selections)
        ],
    )


def load(settings: HubSettings) -> Dataset:
    """The data set's split, from the Hub or from a local file or folder.

    Raises:
        SourceError: it does not exist, may not be read, or has no such split.
        SourceUnreachable: the Hub did not answer after several tries.
    """
    for name, value in _TELEMETRY_OFF.items():  # read when `datasets` is imported, below
        os.environ.setdefault(name, value)
    path = Path(settings.name)
    if path.is_file():
        form = _FORMATS.get(path.suffix.lower())
        if form is None:
            raise SourceError(
                f"{path}: its name ends in none of {', '.join(_FORMATS)} (prepare.hub.name)"
            )
        return _local(settings, path=form, data_files={settings.split: str(path)})
    if path.is_dir():
        return _local(settings, path=str(path))
    if path.is_absolute() or settings.name.startswith(".") or settings.name.count("/") > 1:
        raise SourceError(f"{path}: no such file or folder (prepare.hub.name)")
    return _from_hub(settings)


def _local(settings: HubSettings, **arguments: Any) -> Dataset:
    # Read anew each time: the client's cache knows a file by its name and time alone.
    return _open(settings, download_mode="force_redownload", **arguments)


def _from_hub(settings: HubSettings) -> Dataset:
    """What `load` does for a name on the Hub."""
    return _open(settings, path=settings.name, revision=settings.revision, token=_token())


def _token() -> str | Literal[False]:
    return os.environ.get("HF_TOKEN") or False  # False: no token that some login left on disk


def commit(settings: HubSettings) -> str:
    """The commit that the data set's revision stands for now.

    Raises:
        SourceError: there is no such data set or revision, or it may not be read.
        SourceUnreachable: the Hub did not answer after several tries.
    """
    from huggingface_hub import HfApi

    asked = partial(HfApi().dataset_info, timeout=_LIMIT_S, token=_token())
    return str(_ask(settings, asked, settings.name, revision=settings.revision).sha)


def _open(settings: HubSettings, **arguments: Any) -> Dataset:
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what is wrong is said below
    return _ask(settings, datasets.load_dataset, split=settings.split, **arguments)


def _ask(settings: HubSettings, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """What the client answers, tried again while the Hub is out of order."""
    import datasets
    import httpx
    from huggingface_hub.errors import HfHubHTTPError
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    tries = Retrying(
        stop=stop_after_attempt(settings.attempts),
        wait=wait_exponential(multiplier=_WAIT_S),
        # Downloads the client tries again by itself, but not its questions to the Hub.
        retry=retry_if_exception(lambda error: later_status(error) is not None),
        reraise=True,
    )
    try:
        return tries(call, *arguments, **named)
    except (
        datasets.exceptions.DatasetsError,
        httpx.TransportError,
        HfHubHTTPError,
        OSError,
        ValueError,
    ) as error:
        raise _in_words(settings, error) from None


def _in_words(settings: HubSettings, error: Exception) -> SourceError:
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError

    why = next(filter(None, map(outage, chain(error))), None)
    if why is not None:
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        return SourceUnreachable(
            f"{settings.name}: the Hub at {where} cannot be reached ({why}); check the network, "
            "or set prepare.hub.name to a local copy"
        )
    if isinstance(error, DatasetNotFoundError | HfHubHTTPError):
        return SourceError(
            f"{settings.name}: does not exist on the Hub or may not be read ({line(error)}); "
            "check prepare.hub.name and prepare.hub.revision; a private or gated data set needs "
            "access and the environment variable HF_TOKEN, which is "
            + ("set" if os.environ.get("HF_TOKEN") else "not set")
        )
    if str(error).startswith("Unknown split"):
        return SourceError(f"{settings.name}: {line(error)} Set prepare.hub.split to that one.")
    return SourceError(
        f"{settings.name}: cannot be read as a data set: {line(error.__cause__ or error)}"
    )


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what came before it; the client suppresses the context that tells outages."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def later_status(error: BaseException) -> int | None:
    """The status of an answer that says: later."""
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(error, HfHubHTTPError):
        return None
    status = error.response.status_code
    return status if status in (408, 429) or status >= 500 else None


def outage(error: BaseException) -> str | None:
    """What tells that the Hub did not answer, or could not."""
    import httpx
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, httpx.TransportError | ConnectionError):
        return "HF_HUB_OFFLINE is set" if is_offline_mode() else type(error).__name__
    if isinstance(error, LocalEntryNotFoundError):
        return "no answer"
    status = later_status(error)
    return None if status is None else f"status {status}"


def line(error: BaseException) -> str:
    """The first line of its message."""
    return next(iter(str(error).splitlines()), type(error).__name__)
