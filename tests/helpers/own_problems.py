"""Problems of a user's own files and folders, read as the stage prepare does."""

from dataclasses import replace
from typing import Any

from tasks import prepare
from tasks.data.read import read_files
from tasks.data.rows import Found, ProblemBounds
from tasks.data.settings import FilesSettings, SplitSettings

BOUNDS = ProblemBounds(min_span_chars=12, max_text_chars=2000, max_papers=8, max_gold_papers=4)
SPLITS = SplitSettings()


def read_own(bounds: ProblemBounds = BOUNDS, splits: SplitSettings = SPLITS, **files: Any) -> Found:
    """Problems of `prepare.files`, whose values may be paths."""
    texts = {name: None if value is None else str(value) for name, value in files.items()}
    drafts, left_out = read_files(FilesSettings.model_validate(texts), splits, bounds)
    return replace(prepare.find(drafts, splits, bounds), left_out=left_out)
