"""Problems that several processes generate independently are the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from env.problems.fields import SyntheticSettings, generate

HASH = """
import hashlib, sys
from env.problems.fields import SyntheticSettings
from env.problems.fields import generate
problems = generate(SyntheticSettings.model_validate_json(sys.argv[1]))
text = "".join(problem.model_dump_json() for problem in problems)
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_the_same_seed_gives_the_same_bytes_in_every_process() -> None:
    few = SyntheticSettings(collections={"train": 3, "validation": 1, "test": 2}, seed=3)
    text = "".join(problem.model_dump_json() for problem in generate(few))
    done = subprocess.run(
        [sys.executable, "-c", HASH, few.model_dump_json()],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()
