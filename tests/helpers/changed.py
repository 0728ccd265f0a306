"""Settings of a test: others with a few values in their place."""

from pathlib import Path
from typing import Any

import yaml

from tasks.config import parse_params
from tasks.config.layers import merge
from tasks.config.params import Params


def changed(params: Params, **sections: Any) -> Params:
    """The settings with these values of these sections."""
    return parse_params(merge(params.model_dump(by_alias=True, mode="json"), sections), "test")


def write_params(params: Params) -> None:
    """Make these settings those of params.yaml in the working folder."""
    Path("params.yaml").write_text(yaml.safe_dump(params.model_dump(by_alias=True, mode="json")))
