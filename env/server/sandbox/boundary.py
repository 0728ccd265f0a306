"""The system-call filter of a worker, compiled to BPF in the server.

Allow-list: what a running interpreter needs to compute, and the channel. Everything else is
EPERM, so that the policy sees an ordinary exception. libseccomp writes the program for one
architecture; a call through another one's table (32 bits, x32) kills the process.
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
_MAP_ANONYMOUS = 0x20
_ETIMEDOUT = 110
_FUTEX_MASK = 0x7F
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAIT_BITSET, _FUTEX_WAKE_BITSET = 0, 1, 9, 10

_OR_MONTY = ", or set env.sandbox.backend=monty, a weaker boundary"

_ALLOWED = (
    # memory without executable pages: see the argument rules below for mmap and mprotect
    "brk",
    "munmap",
    "mremap",
    "madvise",
    # clocks, where the vDSO falls back to the kernel; no sleeping and no timers
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "sched_yield",
    "getrandom",
    # the soft limit's signal, and being stopped and continued by the host
    "rt_sigreturn",
    "restart_syscall",
    "exit",
    "exit_group",
)


ARCHITECTURES = ("x86_64", "aarch64")
"""Those whose calls take their arguments as the rules below read them."""


def compile_filter(machine: str | None = None) -> bytes:
    """Return the BPF program (8 bytes per instruction).

    Args:
        machine: One of `ARCHITECTURES`; None for this machine's.

    Raises:
        SandboxError: seccomp cannot be had here.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError(
            f"The REPL sandbox needs Linux with seccomp, and this is {sys.platform}. "
            f"Run the environment server in a Linux container or virtual machine{_OR_MONTY}."
        )
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise SandboxError(
            f"The REPL sandbox has no filter for {machine}, only for {', '.join(ARCHITECTURES)}: "
            f"run the environment server on one of these{_OR_MONTY}."
        )
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxError(
            f"The REPL sandbox needs libseccomp ({error}). "
            f"Install it: `apt-get install libseccomp2` and `pip install pyseccomp`{_OR_MONTY}."
        ) from error
    try:
        return _program(pyseccomp, machine)
    except OSError as error:
        raise SandboxError(
            f"libseccomp could not build the sandbox's filter ({error}). "
            "Version 2.5 or later is needed: `apt-get install libseccomp2`."
        ) from error


def _program(seccomp: Any, machine: str) -> bytes:
    rules = seccomp.SyscallFilter(seccomp.ERRNO(_EPERM))
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    arch = getattr(seccomp.Arch, machine.upper())
    if arch != seccomp.system_arch():
        rules.remove_arch(seccomp.system_arch())
        rules.add_arch(arch)
    for name in _ALLOWED:
        if seccomp.resolve_syscall(arch, name) >= 0:  # negative: it has no such call
            rules.add_rule(seccomp.ALLOW, name)
    for name in ("read", "write"):
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, CHANNEL_FD))
    no_exec = seccomp.Arg(2, seccomp.MASKED_EQ, _PROT_EXEC, 0)
    anonymous = seccomp.Arg(3, seccomp.MASKED_EQ, _MAP_ANONYMOUS, _MAP_ANONYMOUS)
    rules.add_rule(seccomp.ALLOW, "mmap", no_exec, anonymous)
    rules.add_rule(seccomp.ALLOW, "mprotect", no_exec)
    # One thread: whoever waits for a lock waits for ever. So waiting is over at once.
    for operation in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_WAKE, _FUTEX_WAKE_BITSET):
        wakes = operation in (_FUTEX_WAKE, _FUTEX_WAKE_BITSET)
        action = seccomp.ALLOW if wakes else seccomp.ERRNO(_ETIMEDOUT)
        same = seccomp.Arg(1, seccomp.MASKED_EQ, _FUTEX_MASK, operation)
        rules.add_rule(action, "futex", same)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
