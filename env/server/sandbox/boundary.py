"""The system-call filter of a worker, compiled to BPF in the server.

An allow-list: the calls that a running interpreter needs to compute, and the channel. Every other
call returns EPERM, so that the policy sees an ordinary exception. libseccomp writes the program
for one architecture. A call through another architecture's table (32 bits, x32) kills the process.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from typing import Any

from env.errors import SandboxError

CHANNEL_FD = 3
_EPERM = 1
_PROT_EXEC = 0x4
_MAP_SHARED = 0x01
_MAP_ANONYMOUS = 0x20
_MAP_HUGETLB = 0x40000
_LAST_CLOCK = 11  # CLOCK_TAI; a higher or negative number means the CPU clock of a process
_MADVICE = (4, 8, 15)  # DONTNEED, FREE, NOHUGEPAGE; PAGEOUT would let a cell wait
_ETIMEDOUT = 110
_FUTEX_MASK = 0x7F
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAIT_BITSET, _FUTEX_WAKE_BITSET = 0, 1, 9, 10

_ALLOWED = (
    # memory, but no executable or shared pages: see the argument rules below
    "brk",
    "munmap",
    "mremap",
    # clocks, for machines without them in the vDSO; neither sleeping nor timers
    "gettimeofday",
    "time",
    "sched_yield",
    "getrandom",
    # the soft limit's signal, and the host's stop and continue signals
    "rt_sigreturn",
    "restart_syscall",
    "exit",
    "exit_group",
)


ARCHITECTURES = ("x86_64", "aarch64")
"""Architectures whose calls have the argument order that the rules below expect."""


def compile_filter(machine: str | None = None) -> bytes:
    """Return the BPF program (8 bytes per instruction).

    Args:
        machine: One of `ARCHITECTURES`; None for this machine's.

    Raises:
        SandboxError: seccomp is not available here.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError(
            f"The REPL sandbox needs Linux with seccomp (this is {sys.platform}). "
            "Open the project in its dev container (.devcontainer/devcontainer.json)."
        )
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise SandboxError(
            f"The REPL sandbox has no filter for {machine}. "
            f"Run the environment server on {' or '.join(ARCHITECTURES)}."
        )
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxError(
            f"The REPL sandbox needs libseccomp ({error}). "
            "Install it: `apt-get install libseccomp2` and `pip install pyseccomp`."
        ) from error
    try:
        return _program(pyseccomp, machine)
    except OSError as error:
        raise SandboxError(
            f"libseccomp could not build the sandbox's filter ({error}). "
            "Install version 2.5 or later: `apt-get install libseccomp2`."
        ) from error


def _program(seccomp: Any, machine: str) -> bytes:
    rules = seccomp.SyscallFilter(seccomp.ERRNO(_EPERM))
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    arch = getattr(seccomp.Arch, machine.upper())
    if arch != seccomp.system_arch():
        rules.remove_arch(seccomp.system_arch())
        rules.add_arch(arch)
    for name in _ALLOWED:
        if seccomp.resolve_syscall(arch, name) >= 0:  # negative: the call does not exist there
            rules.add_rule(seccomp.ALLOW, name)
    for name in ("read", "write"):
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, CHANNEL_FD))
    no_exec = seccomp.Arg(2, seccomp.MASKED_EQ, _PROT_EXEC, 0)
    # Shared pages stay in memory although the process no longer maps them: nobody could count them.
    # A huge page is one fault: `usage.py` takes each for a page.
    kinds = _MAP_ANONYMOUS | _MAP_SHARED | _MAP_HUGETLB
    own = seccomp.Arg(3, seccomp.MASKED_EQ, kinds, _MAP_ANONYMOUS)
    rules.add_rule(seccomp.ALLOW, "mmap", no_exec, own)
    rules.add_rule(seccomp.ALLOW, "mprotect", no_exec)
    for advice in _MADVICE:
        rules.add_rule(seccomp.ALLOW, "madvise", seccomp.Arg(2, seccomp.EQ, advice))
    # The CPU clocks of other processes are a way to listen and to talk.
    for name in ("clock_gettime", "clock_getres"):
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.LE, _LAST_CLOCK))
    # A worker has one thread, which would wait for a lock for ever. So each wait times out at once.
    for operation in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_WAKE, _FUTEX_WAKE_BITSET):
        wakes = operation in (_FUTEX_WAKE, _FUTEX_WAKE_BITSET)
        action = seccomp.ALLOW if wakes else seccomp.ERRNO(_ETIMEDOUT)
        rules.add_rule(action, "futex", seccomp.Arg(1, seccomp.MASKED_EQ, _FUTEX_MASK, operation))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
