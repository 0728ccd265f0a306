"""Which problems a Space plays: its tree is for others to read, so no gold may follow from it.

Either the Space generates them from a secret seed, or it reads a private data set that is pushed
here. Neighbours: `space.py` deploys, `env/server/service.py` is the Space's side of it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from env import access
from tasks.config import Params
from tasks.errors import ConfigError
from tasks.hub import Hub

GUESSABLE = 2**40
"""Seeds below it can be tried out, and with the seed goes the gold."""


@dataclass(frozen=True)
class Problems:
    """Where the Space's problems come from."""

    told: str
    """For the tree's README."""
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    mark: str = ""
    """Changes with the problems, where nothing else in the tree does."""


def check(params: Params, data: Path | None) -> None:
    """Refuse what cannot be served, or would give gold away, before the Hub is asked.

    Raises:
        ConfigError: one of these settings is wrong.
    """
    settings = params.deploy.space
    synthetic = params.prepare.source == "synthetic"
    if settings.problems == "dataset" and data is None:
        raise ConfigError(
            "deploy: deploy.space.problems is dataset, but there are no problems here; run "
            "`python -m flows.pipeline prepare` first"
        )
    if settings.problems == "seed" and not synthetic:
        raise ConfigError(
            f"deploy: problems of the source {params.prepare.source} cannot be generated; set "
            "deploy.space.problems: dataset"
        )
    # Of a data set too: the tree holds the generator and all of its settings but the seed.
    if synthetic and not settings.private and params.prepare.synthetic.seed < GUESSABLE:
        raise ConfigError(
            f"deploy: a public Space would play problems of seed {params.prepare.synthetic.seed}, "
            "which anybody can try out, and with them their gold; set prepare.synthetic.seed to a "
            'large secret number (python -c "import secrets; print(secrets.randbits(60))"), or '
            "deploy.space.private: true"
        )


def problems_of(params: Params, hub: Hub, space: str, data: Path | None) -> Problems:
    """Where the Space's problems come from; a data set is pushed first."""
    settings = params.deploy.space
    if settings.problems == "seed":
        seed = str(params.prepare.synthetic.seed)
        # Tells that the seed changed, without telling the seed: a slow hash of a large number.
        mark = hashlib.scrypt(seed.encode(), salt=space.encode(), n=2**14, r=8, p=1).hex()[:16]
        return Problems("generated from a secret seed", {}, {access.SEED: seed}, f"seed {mark}")
    assert data is not None
    token = variable(access.DATASET_TOKEN, "deploy.space.problems: dataset")
    name = hub.full_name(settings.dataset)
    hub.ask(
        f"create the dataset {name}",
        hub.api.create_repo,
        name,
        repo_type="dataset",
        private=True,
        exist_ok=True,
    )
    info = hub.ask(f"read the dataset {name}", hub.api.dataset_info, name)
    if not info.private:
        raise ConfigError(
            f"deploy: the dataset {name} is public, and holds the gold of every problem; make it "
            "private, or name another with deploy.space.dataset"
        )
    revision = hub.push(name, "dataset", data)
    variables = {access.DATASET: name, access.DATASET_REVISION: revision}
    return Problems("read from a private data set", variables, {access.DATASET_TOKEN: token})


def variable(name: str, wanted_by: str) -> str:
    """What an environment variable holds.

    Raises:
        ConfigError: it is not set; the message says what wants it.
    """
    value = os.environ.get(name)
    if not value:
        remedy = (
            "a token that may read that data set and nothing else"
            if name == access.DATASET_TOKEN
            else "its value"
        )
        raise ConfigError(f"deploy: {wanted_by} needs the environment variable {name}: {remedy}")
    return value
