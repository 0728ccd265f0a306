"""Whether data/problems was made with the settings in force."""

from __future__ import annotations

from tasks import io, paths
from tasks.config.params import Params
from tasks.errors import StageError

KEY = "settings_sha256"


def bounds(params: Params) -> dict[str, int]:
    """The settings of other sections by which rows are rejected, as `ProblemBounds` names them."""
    return {
        "min_span_chars": params.rewards.min_span_chars,
        "max_gold_papers": params.env.limits.max_children,
    }


def digest(params: Params) -> str:
    """Of the section `prepare` and its `bounds`."""
    return io.digest([params.prepare.model_dump(mode="json"), bounds(params)])


def require_current(params: Params) -> None:
    """Refuse problems that were made under other settings.

    Raises:
        StageError: they were. Without a report, the stage itself says what is missing.
    """
    made, wanted = io.read_json(paths.PREPARED), digest(params)
    if made.get(KEY, wanted) != wanted:
        raise StageError(
            f"data/problems was made with other settings (prepare.source: {made['source']}). "
            "Run `rlm prepare` first; if it fails, the problems of before are still there."
        )
