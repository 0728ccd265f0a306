"""Problems of a Space: others can read its tree, so the tree must not reveal the gold.

The Space either generates them from a secret seed, or reads a private data set that is pushed
here. `env/server/service.py` is the Space's side of it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from env import variables
from tasks.config.params import Params
from tasks.deployment.hub_client import Hub
from tasks.errors import ConfigError

GUESSABLE = 2**80
"""Smaller seeds can be found by trial, and the seed reveals the gold."""


@dataclass(frozen=True)
class SpaceProblems:
    """Origin of the Space's problems."""

    description: str
    """Text for the tree's README."""
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    mark: str = ""
    """Mark that changes with the problems, where nothing else in the tree does."""


def require_servable(params: Params, data: Path | None) -> None:
    """Refuse settings that cannot be served or would reveal gold, before any call of the Hub.

    Raises:
        ConfigError: one of these settings is wrong.
    """
    settings = params.deploy.space
    synthetic = params.prepare.source == "synthetic"
    if settings.problems == "dataset" and data is None:
        raise ConfigError(
            "deploy.space.problems is dataset, but data/problems is empty. Run `rlm prepare`."
        )
    if settings.problems == "seed" and not synthetic:
        raise ConfigError(
            f"problems of the source {params.prepare.source} cannot be generated. Set "
            "deploy.space.problems: dataset."
        )
    # Also with a data set: the tree contains the generator and all its settings but the seed.
    if synthetic and not settings.private and params.prepare.synthetic.seed < GUESSABLE:
        raise ConfigError(
            f"a public Space would play problems of seed {params.prepare.synthetic.seed}, "
            "which others can guess, and so their gold. Set prepare.synthetic.seed to a large "
            'secret number (python -c "import secrets; print(secrets.randbits(128))"), or '
            "deploy.space.private: true."
        )


def problems_of(params: Params, hub: Hub, space: str, data: Path | None) -> SpaceProblems:
    """Origin of the Space's problems; pushes the data set if there is one."""
    settings = params.deploy.space
    if settings.problems == "seed":
        seed = str(params.prepare.synthetic.seed)
        changes = f"seed {mark(seed, space)}"
        return SpaceProblems("generated from a secret seed", {}, {variables.SEED: seed}, changes)
    assert data is not None
    token = variable(variables.DATASET_TOKEN, "deploy.space.problems: dataset")
    name = hub.full_name(settings.dataset)
    why = "the one of deploy.space.dataset must be private: it has the gold of every problem"
    hub.create(name, "dataset", private=True, why=why)
    values = {variables.DATASET: name, variables.DATASET_REVISION: hub.push(name, "dataset", data)}
    return SpaceProblems("read from a private data set", values, {variables.DATASET_TOKEN: token})


@cache
def mark(secret: str, space: str) -> str:
    """Mark in a Space's tree that shows a change of a secret, but not the secret: a slow hash."""
    return hashlib.scrypt(secret.encode(), salt=space.encode(), n=2**14, r=8, p=1).hex()[:16]


def variable(name: str, wanted_by: str) -> str:
    """Value of an environment variable.

    Args:
        name: the variable.
        wanted_by: the setting that needs it, for the message.

    Raises:
        ConfigError: it is not set.
    """
    value = os.environ.get(name)
    if not value:
        token = "a token that may read only that data set"
        value = token if name == variables.DATASET_TOKEN else "its value"
        raise ConfigError(f"{wanted_by} needs an environment variable. Set {name} to {value}.")
    return value
