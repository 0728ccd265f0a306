"""Problems that several processes generate independently are the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from env.problems.settings import SyntheticSettings
from env.problems.synthetic import generate
from tasks.config import resolve

HASH = """
import hashlib, sys
from env.problems.settings import SyntheticSettings
from env.problems.synthetic import generate
for text in sys.argv[1:]:
    problems = generate(SyntheticSettings.model_validate_json(text))
    text = "".join(problem.model_dump_json() for problem in problems)
    print(hashlib.sha256(text.encode()).hexdigest())
"""
PAPERS = {"collections": {"train": 1, "test": 1}, "canaries": 0.4, "seed": 5}
FEW = {"train": 3, "validation": 1, "test": 2}


def test_the_same_seed_gives_the_same_bytes_in_every_process() -> None:
    papers = resolve("papers").prepare.synthetic.model_copy(update=PAPERS)
    worlds = [papers, SyntheticSettings(collections=FEW, seed=3)]
    assert [settings.world for settings in worlds] == ["papers", "fields"]
    texts = ["".join(p.model_dump_json() for p in generate(settings)) for settings in worlds]
    done = subprocess.run(
        [sys.executable, "-c", HASH, *(settings.model_dump_json() for settings in worlds)],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [hashlib.sha256(text.encode()).hexdigest() for text in texts]
