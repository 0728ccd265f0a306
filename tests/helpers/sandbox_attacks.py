"""Play hostile cells against a sandbox host, and report what went wrong.

The cells are in `sandbox_attacks_outward.py`, `_inward.py` and `_channel.py`, each with its allowed
ends: `ok` (it ran to its end, without harm), `refused` (PermissionError by the filter), or the
error of `CellDone`, with `lost` if the process was replaced. As a program, this module plays all
of them and prints a JSON line for each, so that another user can run it.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyseccomp import Arch, resolve_syscall

from env.errors import SandboxError
from env.server.sandbox import UNSET, CellDone, Repl, SandboxHost, SubCall
from env.settings import EnvSettings, LimitSettings
from helpers import sandbox_attacks_channel as channel
from helpers import sandbox_attacks_inward as inward
from helpers import sandbox_attacks_outward as outward

LIMITS = LimitSettings(cell_cpu_s=0.15, cell_wall_s=4, memory_mb=64, observation_chars=2000)
_BRIEF = LIMITS.model_copy(update={"cell_cpu_s": 0.05})
"""For attacks that end by their CPU time and in no other way."""
SECRET = "gold-4f1c9a"
ROOT = Path(__file__).resolve().parents[2]
_BECOME = (
    "setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set -all,+dac_read_search "
    "--inh-caps -all,+dac_read_search --ambient-caps +dac_read_search"
)
ORDINARY_USER = _BECOME.split()
"""Becomes user 1000, who may read this checkout and Python wherever they lie, and nothing more.
The capability ends in the zygote: no worker has any."""
_CHAT_TOKEN = re.compile(r"<\|[^|<>\n]+\|>")
_GRACE_CPU_S = 1.0
"""The host's half second from the soft limit to the kill, and time to notice."""
_ATTACK_WALL_S = 45.0
_ALL_WALL_S = 240.0


def numbers(arch: Arch) -> dict[str, int]:
    """Every system call of an architecture that libseccomp knows, by name."""
    found = {}
    for number in range(1024):
        with contextlib.suppress(ValueError):
            found[resolve_syscall(arch, number).decode()] = number
    return found


NUMBERS = numbers(Arch.NATIVE)
_RULES = (
    "brk munmap mremap mmap mprotect madvise read write futex gettimeofday time clock_gettime "
    "clock_getres sched_yield getrandom rt_sigreturn restart_syscall exit exit_group"
)
CALLS = {name: number for name, number in NUMBERS.items() if name not in _RULES.split()}
"""Calls that no worker may make, with any arguments."""

PREAMBLE = """
import atexit, ctypes, gc, itertools, json, mmap, os, pickle, queue, re, resource, select, signal
import socket, struct, subprocess, sys, threading, time, warnings, zlib
libc = ctypes.CDLL(None, use_errno=True)
def native(name, *args):
    ctypes.set_errno(0)
    if libc.syscall(NUMBERS[name], *map(wide, args)) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def wide(value):
    return ctypes.c_long(value) if isinstance(value, int) else value
def refused(function, *args, **options):
    try:
        function(*args, **options)
    except OSError as error:
        if error.errno == 1:
            return
    print("ESCAPED", function, args)
def hunt(things):
    count = 0
    for count, thing in enumerate(things, 1):
        if SECRET in str(thing)[::-1]:
            print("ESCAPED", str(thing)[:80])
    assert count
def echo(value):
    return rlm_query("q", value)
def forge(header):
    data = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    send(struct.pack("!II", 4 + len(data), len(data)) + data)
def send(data):
    os.write(3, data)
    while True: pass
worker = FINAL.__self__._finish.__self__
frame = sys.modules[type(worker).__module__.rpartition(".")[0] + ".channel"].frame
NUMBER = worker._number + 1
REPORT = {"stdout": "", "cut": 0, "error": None, "traceback": "", "new": [], "full": False}
"""


@dataclass(frozen=True)
class Attack:
    """The cells of one attack, and the ways in which the last of them may end."""

    cells: tuple[str, ...]
    ends: tuple[str, ...]


class UnfilteredHost(SandboxHost):
    """The negative control: every layer but the system-call filter."""

    _seccomp = False


def read(text: str) -> dict[str, tuple[str, str]]:
    """Split a table into {name: (text after the arrow, code)}."""
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    heads = [head.partition(" -> ") for head, _, _ in parts]
    table = {name: (ends, code) for (name, _, ends), (_, _, code) in zip(heads, parts, strict=True)}
    if len(table) != len(parts):
        raise ValueError("two entries of a table have the same name")
    return table


def _attacks() -> dict[str, Attack]:
    families = {
        name.lower(): text
        for module in (outward, inward, channel)
        for name, text in vars(module).items()
        if name.isupper() and isinstance(text, str)
    }
    attacks = {
        f"{family}: {name}": Attack(tuple(code.split("# next cell\n")), tuple(ends.split(", ")))
        for family, text in families.items()
        for name, (ends, code) in read(text).items()
    }
    for name, code in inward.SOURCES.items():
        attacks[f"source: {name}"] = Attack((code,), ("syntax",))
    return attacks


ATTACKS = _attacks()
_HOSTS = ("cpu", "memory", "output", "parser", "channel")
"""Families that the host ends for any user."""
ORDINARY = [
    name
    for number, name in enumerate(ATTACKS)
    if name.partition(":")[0] not in _HOSTS or number % 4 == 0
]
"""Attacks that an ordinary user plays too; one in four of `_HOSTS`."""
_HARMFUL = ("memory: shared pages",)
CONTROL = [
    *(name for name, one in ATTACKS.items() if one.ends == ("refused",) and name not in _HARMFUL),
    *("files: access", "exit: all descriptors closed", "cpu: SIGALRM ignored"),
    *("cpu: all signals blocked", "tampering: rlimits lowered", "tampering: umask"),
]
"""Attacks that succeed on any Linux if only the filter is missing, and do no harm there."""


def open_neighbour(host: SandboxHost) -> Repl:
    """Another episode's REPL, with something worth stealing and a variable to lose."""
    repl = host.open({"p1": f"the {SECRET} of another"})
    repl.run("mine = [1, 2, 3]")
    return repl


def play(host: SandboxHost, neighbour: Repl, attack: Attack) -> list[str]:
    """Play one attack from a new REPL; return what should not have happened."""
    repl = host.open({"p1": "text"})
    zygote = host._zygote.pid
    started = time.monotonic()
    try:
        wrong = _play_in(repl, zygote, attack)
    except SandboxError as error:
        wrong = [f"the machinery failed: {error}"]
    if time.monotonic() - started > _ATTACK_WALL_S:
        wrong.append("the host hung")
    if host._zygote.pid != zygote:
        wrong.append("the zygote is another one")
    try:
        kept = neighbour.run("print(sum(mine))\nFINAL(mine)")
        if not isinstance(kept, CellDone) or (kept.stdout, kept.final) != ("6\n", [1, 2, 3]):
            wrong.append(f"the neighbour is harmed: {kept}")
    except SandboxError as error:
        wrong.append(f"the neighbour is gone: {error}")
    repl.close()
    return wrong


def prepare(repl: Repl, zygote: int) -> None:
    """Give a REPL the helpers that attacks use."""
    given = {
        "NUMBERS": NUMBERS,
        "CALLS": CALLS,
        "PARENT": zygote,
        "SELF": repl._worker.pid,
        "SECRET": SECRET[::-1],  # or the attack would find its own search term
    }
    repl.run("".join(f"{name} = {value!r}\n" for name, value in given.items()) + PREAMBLE)


def _play_in(repl: Repl, zygote: int, attack: Attack) -> list[str]:
    prepare(repl, zygote)
    wrong = []
    if all(end.startswith("cpu") for end in attack.ends):
        repl._limits = _BRIEF
    for code in attack.cells:
        done = _answered(repl, code)
        wrong += _harm(done)
    repl._limits = LIMITS
    end = _end(done)
    if end not in attack.ends:
        wrong.append(f"it ended as {end}, not {' or '.join(attack.ends)}: {done.traceback[-300:]}")
    # A worker whose insides were broken is replaced by the next cell, or the one after it.
    for _ in range(3):
        after = repl.run("print(len(context['p1']), 'ok')\nFINAL(search(context, 'text'))")
        if isinstance(after, CellDone) and after.final == {"p1": ["text"]}:
            return wrong if after.stdout == "4 ok\n" else [*wrong, f"afterwards: {after}"]
    return [*wrong, f"it plays no more: {after}"]


def _answered(repl: Repl, code: str) -> CellDone:
    """Run a cell; each of its sub-calls gets back what the host received."""
    event = repl.run(code)
    while isinstance(event, SubCall):
        event = repl.resume((event.contexts or event.prompts)[0])
    return event


def _harm(done: CellDone) -> list[str]:
    shown = done.stdout + done.traceback
    wrong = []
    if "ESCAPED" in done.stdout or SECRET in shown or _CHAT_TOKEN.search(shown):
        wrong.append(f"it printed {shown[:300]!r}")
    if len(done.stdout) > LIMITS.observation_chars or len(done.traceback) > 4000:
        wrong.append("its output is not bounded")
    if done.final is not UNSET:
        wrong.append("it gave an answer")
    if done.cpu_s > LIMITS.cell_cpu_s + _GRACE_CPU_S:
        wrong.append(f"it took {done.cpu_s} CPU seconds")
    return wrong


def _end(done: CellDone) -> str:
    end = done.error or "ok"
    if end == "exception" and "PermissionError: [Errno 1]" in done.traceback:
        end = "refused"
    return f"{end} lost" if done.variables_lost else end


def play_elsewhere(*arguments: str, user: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run this module as a program, as another user if `user` is a command.

    Returns:
        Its lines, and last its exit status, which is None if it hung and had to be killed.
    """
    command = [*user, sys.executable, "-m", "helpers.sandbox_attacks", *arguments]
    # Not by its path alone: then `env` would be whichever checkout is installed.
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    status = None
    with tempfile.TemporaryFile("w+") as output:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, timeout=_ALL_WALL_S, check=False
            )
            status = run.returncode
        output.seek(0)
        return [*map(json.loads, output), {"attack": "the end", "wrong": status}]


def main() -> None:
    """Play ORDINARY, with `--all` every attack, with `--unfiltered` CONTROL without the filter."""
    unfiltered = "--unfiltered" in sys.argv
    os.environ["RLM_TEST_SECRET"] = SECRET
    host = (UnfilteredHost if unfiltered else SandboxHost)(EnvSettings(limits=LIMITS))
    neighbour = open_neighbour(host)
    status = Path(f"/proc/{neighbour._worker.pid}/status").read_text()
    sys.stdout.write(json.dumps({"enforced": host.enforced, "status": status}) + "\n")
    for name in CONTROL if unfiltered else ATTACKS if "--all" in sys.argv else ORDINARY:
        found = play(host, neighbour, ATTACKS[name])
        sys.stdout.write(json.dumps({"attack": name, "wrong": found}) + "\n")
        sys.stdout.flush()
    host.close()


if __name__ == "__main__":
    main()
