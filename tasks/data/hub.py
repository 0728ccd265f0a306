"""The source `hub`: a data set of the form of `alphaXiv/multi-paper-synthetic`.

Columns: `question`; `papers`, a list of {paperId, title, abstract, text}; `evidence`, a list of
{paperId, selections: [{text}]}; the two lists may be JSON text. Each selection is a fact, and
the difficulty follows from the tier. The `datasets` library reads it from the Hub, or from a local
file or folder of that form. The token comes only from the environment variable HF_TOKEN.
`drafts.py` locates the selections and assigns splits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from env.errors import SourceError, SourceUnreachable
from tasks.data.drafts import Place, ProblemDraft, complete_all
from tasks.data.row_schema import Filled, PaperRow, faults
from tasks.data.settings import HubSettings, SplitSettings
from tasks.data.source import Found, OnProgress, ProblemBounds, Rejected
from tasks.data.tables import parse_json

if TYPE_CHECKING:
    from datasets import Dataset

T = TypeVar("T")

COLUMNS = ("question", "papers", "evidence")
_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_TELEMETRY_OFF = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
_SPLIT = "train"
"""The data set's own split, the one that such data sets have."""
_ATTEMPTS = 3
_WAIT_S = 1.0
"""Seconds before the second try; they double with each try."""
_LIMIT_S = 30.0
"""Seconds that one request to the Hub may take."""


class _Part(BaseModel):
    # Other keys of the data set are ignored.
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _HubPaper(PaperRow, extra="ignore"):
    paper_id: Filled = Field(alias="paperId")


class _HubSelection(_Part):
    text: Filled


class _HubEvidence(_Part):
    paperId: Filled
    selections: Annotated[list[_HubSelection], Field(min_length=1)]


class _HubRow(_Part):
    question: Filled
    papers: Annotated[list[_HubPaper], Field(min_length=1)]
    evidence: Annotated[list[_HubEvidence], Field(min_length=1)]


def read_data_set(
    settings: HubSettings,
    splits: SplitSettings,
    bounds: ProblemBounds,
    progress: OnProgress | None = None,
) -> Found:
    """Problems of the data set in their splits, and all rejected rows.

    Raises:
        SourceError: the data set does not exist, is not accessible, or has other columns.
        SourceUnreachable: the Hub did not answer.
    """
    table = load(settings)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise SourceError(
            f"{settings.name}: has no column {', '.join(map(repr, missing))}, only "
            f"{', '.join(map(repr, table.column_names))}. Set prepare.hub.name to a data set of "
            "the form of alphaXiv/multi-paper-synthetic, see docs/own_data.md."
        )
    rows = enumerate(table.select_columns(list(COLUMNS)), 1)
    name = Path(settings.name).name
    drafts = ((f"{name}:{number}", _draft(f"{name}:{number}", data)) for number, data in rows)
    return complete_all(drafts, splits, bounds, progress)


def _draft(row: str, data: dict[str, Any]) -> ProblemDraft | list[Rejected]:
    """The row with its types checked, or its faults."""
    values = dict(data)
    for name in COLUMNS[1:]:
        if isinstance(values[name], str):
            try:
                values[name] = parse_json(values[name])
            except ValueError as error:
                return [Rejected(row, name, str(error), f"write {name} as a JSON list")]
    try:
        parsed = _HubRow.model_validate(values)
    except ValidationError as error:
        return faults(row, error, lambda path: COLUMNS)
    return ProblemDraft(
        row=row,
        question=parsed.question,
        papers=[paper.paper() for paper in parsed.papers],
        facts=[
            [Place(f"evidence[{i}].selections[{j}]", one.paperId, selection.text)]
            for i, one in enumerate(parsed.evidence)
            for j, selection in enumerate(one.selections)
        ],
    )


def load(settings: HubSettings) -> Dataset:
    """Split of the data set, from the Hub or from a local file or folder.

    Raises:
        SourceError: it does not exist, is not accessible, or lacks the split.
        SourceUnreachable: the Hub did not answer after several tries.
    """
    for name, value in _TELEMETRY_OFF.items():  # read when `datasets` is imported, below
        os.environ.setdefault(name, value)
    path = Path(settings.name)
    if path.is_file():
        form = _FORMATS.get(path.suffix.lower())
        if form is None:
            formats = ", ".join(_FORMATS)
            raise SourceError(f"{path}: is not a {formats} file. Correct prepare.hub.name.")
        return _local(settings, path=form, data_files={_SPLIT: str(path)})
    if path.is_dir():
        return _local(settings, path=str(path))
    if path.is_absolute() or settings.name.startswith(".") or settings.name.count("/") > 1:
        raise SourceError(f"{path}: does not exist. Correct prepare.hub.name.")
    return _open(settings, path=settings.name, revision=settings.revision, token=_token())


def _local(settings: HubSettings, **arguments: Any) -> Dataset:
    # Always read again: the client's cache identifies a file only by its name and time.
    return _open(settings, download_mode="force_redownload", **arguments)


def _token() -> str | Literal[False]:
    return os.environ.get("HF_TOKEN") or False  # False: ignore a token that a login stored on disk


def commit(settings: HubSettings) -> str:
    """Current commit of the data set's revision.

    Raises:
        SourceError: the data set or revision does not exist or is not accessible.
        SourceUnreachable: the Hub did not answer after several tries.
    """
    from huggingface_hub import HfApi

    read_info = partial(HfApi().dataset_info, timeout=_LIMIT_S, token=_token())
    return str(_call(settings, read_info, settings.name, revision=settings.revision).sha)


def _open(settings: HubSettings, **arguments: Any) -> Dataset:
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # errors are reported below
    return _call(settings, datasets.load_dataset, split=_SPLIT, **arguments)


def _call(settings: HubSettings, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Result of a call of the client."""
    import datasets
    import httpx

    try:
        return tries(_ATTEMPTS)(call, *arguments, **named)
    except (datasets.exceptions.DatasetsError, httpx.HTTPError, OSError, ValueError) as error:
        refused = SourceUnreachable if passes(error) else SourceError
        broken = isinstance(error, datasets.exceptions.DatasetGenerationError)
        raise refused(
            f"{settings.name}: cannot be read as a data set "
            f"({line((broken and error.__cause__) or error)}). Check prepare.hub and, for one on "
            "the Hub, the network. A private or gated one needs access and the environment "
            f"variable HF_TOKEN, which is {'' if _token() else 'not '}set."
        ) from None


def tries(attempts: int) -> Retrying:
    """Calls a function again while the Hub or the network fails, at most so many times."""
    return Retrying(
        stop=stop_after_attempt(attempts),
        wait=wait_exponential(multiplier=_WAIT_S),
        retry=retry_if_exception(passes),
        reraise=True,
    )


def passes(error: BaseException) -> bool:
    """Whether the Hub or the network failed, so that a later try may help."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    for cause in chain(error):
        if isinstance(cause, httpx.TransportError | ConnectionError | LocalEntryNotFoundError):
            return True
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status in (408, 429) or status >= 500
    return False


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, suppressed contexts included: these reveal outages."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def line(error: BaseException) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__
