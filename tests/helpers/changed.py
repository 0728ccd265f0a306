"""Settings of a test: others with a few values in their place."""

from __future__ import annotations

from typing import Any

from tasks.config import check
from tasks.config.layers import merge
from tasks.config.params import Params


def changed(params: Params, **sections: Any) -> Params:
    """The settings with these values of these sections."""
    return check(merge(params.model_dump(by_alias=True, mode="json"), sections), "test")
