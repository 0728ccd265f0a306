"""Take part in a training that the first of several hosts runs as its stage `train`.

    RLM_RANKS=HOST:PORT/1/2 python -m tasks.train_join

Every host has the same commit, params.resolved.yaml, data/problems, models/base and, for a training
that resumes, models/checkpoints. The ranks compare them before anything is played. They write
nothing here. HOST:PORT is an address of the first host; keep it in a private network.
"""

from __future__ import annotations

import sys

from agent.training import checkpoints, ranks
from tasks import config, train, train_problems
from tasks.errors import ConfigError, PipelineError, as_stage_error, stage_named
from tasks.io import require
from tasks.params import Params
from tasks.train_fingerprint import fingerprint


@as_stage_error()
def join(params: Params) -> None:
    """Train to the last step with the ranks of the other hosts.

    Raises:
        ConfigError: `RLM_RANKS` does not name a further host.
        StageError: data or base is missing, or a rank failed or differs.
    """
    if not ranks.meeting().number:
        raise ConfigError(
            "RLM_RANKS names no further host. Set HOST:PORT/1/2 on the second of two."
        )
    ranks.require_whole_weights()
    for path, stage in ((train_problems.DATA, "prepare"), (train.BASE, "warmstart")):
        require(path, stage)
    marks = fingerprint(params, train.BASE, train_problems.DATA)
    start = checkpoints.choose(train.CHECKPOINTS, marks)
    processes = train.processes_here(params.train.processes)
    train.learn_in_ranks(params, marks, start, processes, shared=None)


def main() -> int:
    """Join; returns the exit code."""
    params = config.load_resolved()
    with stage_named("train"):
        join(params)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PipelineError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(error.exit_code)
