"""Facts about this machine: system, memory, disk, torch, graphics cards, libraries.

It only reads, imports nothing heavy, and works before anything is installed. `flows/doctor.py`
judges the facts.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from env.cgroups import machine_bytes

QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.free,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
)
"""Not torch, whose build may be one for CPUs, and not NVML's package: setup has yet to choose."""
QUERY_S = 20.0
"""Seconds that `nvidia-smi` may take; the first answer of an idle driver takes several."""


@dataclass(frozen=True)
class GraphicsCard:
    """A CUDA device, as its driver describes it."""

    name: str
    memory_mb: int
    free_mb: int
    driver: str
    """Version of the driver, such as 580.82.07."""
    capability: tuple[int, int]
    """Compute capability: (7, 5) of a T4, (8, 0) of an A100, (9, 0) of an H200."""

    @property
    def driver_branch(self) -> int:
        """First number of the driver's version, which decides the CUDA versions it runs."""
        return int(self.driver.partition(".")[0])


@dataclass(frozen=True)
class Machine:
    """Facts about a machine and the project's installation on it."""

    system: str
    """Linux, Darwin or Windows."""
    release: str
    python: tuple[int, int]
    """Version of the interpreter that runs this, which has the libraries below or not."""
    memory_bytes: int
    disk_free_bytes: int
    """Free bytes where the project is."""
    torch: str | None
    """Version of the installed torch; None without one."""
    torch_cuda: str | None
    """CUDA version of its build; None for a CPU build."""
    cards: tuple[GraphicsCard, ...]
    cards_fault: str | None
    """Reason why `nvidia-smi` named no cards; None without the program."""
    seccomp: bool
    """Whether the sandbox finds libseccomp."""
    compiler: bool
    """Whether Triton finds a C compiler and Python's header, when it first trains."""
    unsloth: bool


def inspect() -> Machine:
    """Read the facts of this machine, with the current folder as the project."""
    torch, torch_cuda = torch_build()
    cards, fault = read_cards()
    return Machine(
        system=platform.system(),
        release=platform.release(),
        python=sys.version_info[:2],
        memory_bytes=machine_bytes(),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        torch=torch,
        torch_cuda=torch_cuda,
        cards=cards,
        cards_fault=fault,
        seccomp=ctypes.util.find_library("seccomp") is not None,
        compiler=any(map(shutil.which, (os.environ.get("CC", "gcc"), "clang")))
        and Path(sysconfig.get_paths()["include"], "Python.h").is_file(),
        unsloth=_installed("unsloth"),
    )


def read_cards() -> tuple[tuple[GraphicsCard, ...], str | None]:
    """The cards, and the reason why none can be read; neither without a driver."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_S)
    except FileNotFoundError:
        return (), None
    except subprocess.TimeoutExpired:
        return (), f"{QUERY[0]} did not answer within {QUERY_S:g} s: restart the machine"
    try:
        if done.returncode:
            raise ValueError
        return tuple(map(parse_card, done.stdout.splitlines())), None
    except ValueError:
        return (), f"{QUERY[0]}: {' '.join((done.stdout + done.stderr).split())[:200]}"


def parse_card(line: str) -> GraphicsCard:
    """A line of `nvidia-smi`.

    Raises:
        ValueError: a value is missing or not a number.
    """
    name, memory_mb, free_mb, driver, capability = line.split(", ")
    major, minor = map(int, capability.split("."))
    return GraphicsCard(name, int(memory_mb), int(free_mb), driver, (major, minor))


def torch_build() -> tuple[str | None, str | None]:
    """Version and CUDA version of the installed torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None, None
    version = re.search(r"^__version__ = ['\"](.+)['\"]", text, re.M)
    cuda = re.search(r"^cuda\b.*= ['\"](.+)['\"]", text, re.M)
    return version and version[1], cuda and cuda[1]


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
