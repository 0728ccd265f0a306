"""Main module of each process of the stage `train` when `train.processes` is more than 1.

    python -m tasks.train_rank FOLDER

`tasks/train.py` writes the job into the folder and starts the processes with torch's launcher.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agent.training import checkpoints, ranks
from tasks import config, paths, train
from tasks.errors import EXPECTED, PipelineError
from tasks.reporting import progress
from tasks.tracking import runs
from tasks.training import problem_data
from tasks.training.fingerprint import fingerprint


def work(job: dict[str, Any]) -> None:
    """Take this rank's part in the training; rank 0 records in the stage's run.

    Raises:
        RankError: a rank has other code, settings, data, another base or checkpoint than the stage.
    """
    params = config.parse_params(job["params"], "the stage's settings")
    with progress.stage("train", quiet=ranks.index() > 0):
        marks = fingerprint(params, paths.BASE, paths.TRAIN)
        start = checkpoints.choose(train.CHECKPOINTS, marks)
        ranks.require_equal(train.marks_of_rank(marks, start), job["marks"])
        client: Any = None if ranks.index() else runs.client(runs.tracking_uri())
        run = runs.StageRun(client, *job["run"])
        problems = problem_data.read_problems(paths.TRAIN, params.train.curriculum.levels)
        try:
            train.learn(params, run, job["url"], problems, start, marks)
        finally:
            if client is not None:
                run.flush()


def main() -> None:
    """Run as a rank."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / train.JOB).read_text(encoding="utf-8"))
    ranks.run_rank(lambda: work(job), folder, (*EXPECTED, PipelineError))


if __name__ == "__main__":
    main()
