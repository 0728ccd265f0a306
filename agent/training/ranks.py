"""Ranks: the processes of one host that share a training.

torch's launcher starts them (`launch`) and ends them when one fails. Every rank has the
same episodes, rows and weights: whole groups are dealt for playing (`play_dealt`), rows for
learning (`batching.py`), and each decision is made on gathered figures. Rank 0 writes files.
Without a process group, this process is rank 0 of one.

Neighbours: `tasks/train.py` starts the ranks, `tasks/train_rank.py` is the main module of each.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    start_processes,
)

from agent.errors import RankError
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.errors import EpisodeError

T = TypeVar("T")

POLL_S = 0.1
"""Seconds between two looks at the processes."""
GRACE_S = 10
"""Seconds that ended ranks have before they are killed."""
WAIT = timedelta(days=1)
"""Longest wait for another rank; the launcher notices at once if a rank has died."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals whose handlers torch's launcher replaces."""


def index() -> int:
    """Number of this rank, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """Number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: T) -> list[T]:
    """The value of each rank, in their order; every rank must call it."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def play_dealt(
    play: Callable[[Sequence[EpisodeSpec]], list[Trajectory]], specs: Sequence[EpisodeSpec]
) -> list[Trajectory]:
    """Play episodes, whole groups by one rank each; every rank returns all of them.

    Args:
        play: plays episodes in the order of the specs.
        specs: the same on every rank; neighbours with one problem are a group.

    Raises:
        EpisodeError: the environment is lost to at least one rank.
    """
    if count() == 1:
        return play(specs)
    groups = groupby(range(len(specs)), key=lambda place: specs[place].problem_id)
    dealt = [list(group) for _, group in groups][index() :: count()]
    places = [place for group in dealt for place in group]
    played: list[Trajectory] = []
    failure: str | None = None
    try:
        played = play([specs[place] for place in places])
    except EpisodeError as error:
        failure = str(error)
    parts = gather((places, played, failure))
    for *_, failure in parts:
        if failure is not None:
            raise EpisodeError(failure)
    trees = {place: tree for part in parts for place, tree in zip(*part[:2], strict=True)}
    return [trees[place] for place in range(len(specs))]


def require_equal(marks: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse ranks that differ.

    Args:
        marks: hashes of this rank's code, settings and data, by name.
        wanted: those of the process that started the ranks.

    Raises:
        RankError: a rank has other marks; every rank raises it.
    """
    for rank, rank_marks in enumerate(gather(dict(marks))):
        names = {*rank_marks, *wanted}
        if differing := sorted(name for name in names if rank_marks.get(name) != wanted.get(name)):
            raise RankError(
                f"rank {rank} differs from the stage in {', '.join(differing)}. Change no file "
                "while a training starts, and run the same command again."
            )


def launch(module: str, folder: Path, processes: int, threads: int) -> None:
    """Run a module as so many ranks, and wait until they are finished.

    When one fails, the others are ended. They also end with this process.

    Args:
        module: main module; it gets `folder` as its argument and calls `run_rank`.
        folder: an empty or prepared folder of this run, private to the user.
        processes: number of ranks.
        threads: CPU threads of each rank.

    Raises:
        RankError: a rank failed; the message is that of the first one.
        KeyboardInterrupt: a signal ended the ranks.
    """
    for name in ("api", "subprocess_handler"):  # its messages repeat ours
        logger = logging.getLogger(f"torch.distributed.elastic.multiprocessing.{name}")
        logger.setLevel(logging.CRITICAL)
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
        # Nothing listens beyond this machine.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    if not torch.cuda.is_available():
        # Else accelerate numbers the device, and torch cannot load a checkpoint to `cpu:0`.
        shared["ACCELERATE_TORCH_DEVICE"] = "cpu"
    numbers = range(processes)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    context: PContext | None = None
    try:
        context = start_processes(
            name="train",
            entrypoint=sys.executable,
            args={rank: ("-m", module, str(folder)) for rank in numbers},
            envs={rank: shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in numbers},
            logs_specs=DefaultLogsSpecs(str(folder / "logs")),
        )
        for number, handler in handlers.items():
            signal.signal(number, handler)
        result = context.wait(period=POLL_S)
    except SignalException:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if context is not None:
            context.close(timeout=GRACE_S)
    assert result is not None  # it waits without a limit
    if result.is_failed():
        # Ranks that the launcher ended have SIGTERM; the first failure is that of another.
        failure = min(
            result.failures.values(), key=lambda f: (f.exitcode == -signal.SIGTERM, f.timestamp)
        )
        if Path(failure.error_file).is_file():
            raise RankError(failure.message)
        code = failure.exitcode
        how = f"by {failure.signal_name()}" if code < 0 else f"with code {code}"
        raise RankError(
            f"rank {failure.local_rank}: ended {how} (SIGKILL often means too little "
            "memory). Run the same command again to resume."
        )


def run_rank(work: Callable[[], None], folder: Path, expected: tuple[type[Exception], ...]) -> None:
    """Run this process's part of `launch`; never returns after a failure.

    Args:
        work: the part, with the process group open.
        folder: that of `launch`.
        expected: errors whose message suffices; others print their traceback too.
    """
    # The kernel ends this process when the launcher dies in any way (Linux).
    mp._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    logging.basicConfig(
        level=logging.ERROR if rank else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            # A file and not a server of torch's, which would listen on all interfaces.
            store=dist.FileStore(str(folder / "store"), ranks),  # type: ignore[attr-defined]
            rank=rank,
            world_size=ranks,
            timeout=WAIT,
        )
        work()
        dist.destroy_process_group()
    except Exception as error:
        # A collective call whose other side is gone.
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            time.sleep(GRACE_S)  # the launcher ends this rank and names the one that failed
        text = str(error) if isinstance(error, expected) else f"{type(error).__name__}: {error}"
        text = text if isinstance(error, RankError) else f"rank {rank}: {text}"
        if not isinstance(error, expected):
            traceback.print_exc()
        failure = {"message": text, "timestamp": int(time.time())}
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(failure))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # threads and exit handlers could wait for the other ranks
