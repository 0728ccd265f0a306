"""Problems that several processes generate independently are the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from env.problems.settings import SyntheticSettings
from env.problems.synthetic import generate
from tasks.config import resolve

HASH = """
import hashlib
from env.problems.settings import SyntheticSettings
from env.problems.synthetic import generate
settings = SyntheticSettings.model_validate_json({settings!r})
text = "".join(problem.model_dump_json() for problem in generate(settings))
print(hashlib.sha256(text.encode()).hexdigest())
"""
PAPERS = {"collections": {"train": 1, "test": 1}, "canaries": 0.4, "seed": 5}
FEW = {"train": 3, "validation": 1, "test": 2}
WORLDS = {
    "papers": resolve("papers").prepare.synthetic.model_copy(update=PAPERS),
    "fields": SyntheticSettings(collections=FEW, seed=3),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seed_gives_the_same_bytes_in_every_process(world: str) -> None:
    settings = WORLDS[world]
    assert settings.world == world
    text = "".join(problem.model_dump_json() for problem in generate(settings))
    done = subprocess.run(
        [sys.executable, "-c", HASH.format(settings=settings.model_dump_json())],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()
