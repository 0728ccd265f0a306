"""Resources of this process: those of the machine, or of the control group that has least.

Containers and batch systems limit groups of processes, in version 1 or 2 of Linux's cgroups. Other
systems have no groups. Imports nothing heavy; `env/server/sandbox` and `flows/machine.py` use it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def machine_bytes() -> int:
    """Memory of this machine, or of the container or group of processes that has least."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits("memory", "memory.max", "memory.limit_in_bytes")])


def most_processes() -> int | None:
    """Processes and threads of this user, container or group; None without a limit."""
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    user = [] if own == resource.RLIM_INFINITY else [own]
    return min([*user, *_limits("pids", "pids.max", "pids.max")], default=None)


def _limits(controller: str, unified: str, legacy: str) -> list[int]:
    """Limits of this process's control group and those above it.

    Args:
        controller: name of the mount of version 1.
        unified: file of version 2.
        legacy: file of version 1.
    """
    texts = [*_texts("", unified), *_texts(controller, legacy)]
    return [int(text) for text in texts if text != "max"]


def _texts(controller: str, name: str) -> Iterator[str]:
    """Contents of a file in this process's group and those above it, each of which limits it."""
    group = PurePosixPath("/", _cgroup(controller))
    for place in (group, *group.parents):
        with suppress(OSError):  # the group is not mounted here, or has no such limit
            yield Path("/sys/fs/cgroup", controller, *place.parts[1:], name).read_text().strip()


def _cgroup(controller: str) -> str:
    """Path of this process's control group: version 1 with a controller, 2 without."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return ""
