"""The source `hub`: a data set of the form of `alphaXiv/multi-paper-synthetic`.

Columns: `question`; `papers`, a list of {paperId, title, abstract, text}; `evidence`, a list of
{paperId, selections: [{text}]}; the two lists may be JSON text. Each selection is a fact, and
the difficulty follows from the tier. The `datasets` library reads it from the Hub, or from a local
file or folder of that form. The token comes only from the environment variable HF_TOKEN.
`place.py` locates the selections.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from env.errors import SourceError, SourceUnreachable
from tasks.data.read import Filled, PaperRow, faults, parse_json
from tasks.data.rows import Draft, Place, Rejected, RowFault
from tasks.data.settings import HubSettings

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


class _Part(BaseModel, extra="ignore", strict=True):  # other keys of the data set are ignored
    pass


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


def read_data_set(settings: HubSettings) -> Iterator[Draft]:
    """Drafts of the rows of the data set.

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
    name = Path(settings.name).name
    for number, data in enumerate(table.select_columns(list(COLUMNS)), 1):
        yield _draft(f"{name}:{number}", data)


def _draft(row: str, data: dict[str, Any]) -> Draft:
    """The row with its types checked, or its faults."""
    for name in COLUMNS[1:]:
        if isinstance(data[name], str):
            try:
                data[name] = parse_json(data[name])
            except RowFault as error:
                fault = Rejected(row, name, str(error), f"write {name} as a JSON list")
                return Draft(row, faults=[fault])
    try:
        parsed = _HubRow.model_validate(data)
    except ValidationError as error:
        return Draft(row, faults=faults(row, error))
    facts = [
        [Place(f"evidence[{i}].selections[{j}]", one.paperId, selection.text)]
        for i, one in enumerate(parsed.evidence)
        for j, selection in enumerate(one.selections)
    ]
    return Draft(row, parsed.question, [paper.paper() for paper in parsed.papers], facts)


def load(settings: HubSettings) -> Dataset:
    """Split of the data set, from the Hub or from a local file or folder.

    Raises:
        SourceError: it does not exist, is not accessible, or lacks the split.
        SourceUnreachable: the Hub did not answer after several tries.
    """
    for name, value in _TELEMETRY_OFF.items():  # read when `datasets` is imported, below
        os.environ.setdefault(name, value)
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # errors are reported below
    path, name = Path(settings.name), settings.name
    # Always read local files again: the client's cache identifies one by its name and time.
    there: dict[str, Any] = {"path": name, "download_mode": "force_redownload"}
    if path.is_file():
        if path.suffix.lower() not in _FORMATS:
            formats = ", ".join(_FORMATS)
            raise SourceError(f"{path}: is not a {formats} file. Correct prepare.hub.name.")
        there |= {"path": _FORMATS[path.suffix.lower()], "data_files": {_SPLIT: name}}
    elif not path.is_dir():
        if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise SourceError(f"{path}: does not exist. Correct prepare.hub.name.")
        there = {"path": name, "revision": settings.revision, "token": _token()}
    return _call(settings, datasets.load_dataset, split=_SPLIT, **there)


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
