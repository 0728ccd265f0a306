"""Confinement of a process: the zygote drops rights for all its children, each worker the rest.

Order matters: each step needs calls that the next one forbids, so seccomp comes last. The filter
is the boundary, and everything else is redundant. If the filter cannot be installed, the process
ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_THP_DISABLE = 41
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE_RULESET = 444  # the same number on x86_64 and aarch64
_LANDLOCK_RESTRICT_SELF = 446
_NOBODY = 65534
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _prctl(option: int, argument: Any, third: Any = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), third, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def harden_zygote() -> list[str]:
    """Drop privileges and files for this process and all its children; return the layers."""
    layers = ["no_new_privs"]
    _die_first()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # The host counts a fault as one page. A kernel without huge pages may not know the call.
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_THP_DISABLE, 1)
    if os.geteuid() == 0 and _drop_uid():
        layers.append("uid")
    if _drop_capabilities():
        layers.append("no_capabilities")
    _prctl(_PR_SET_DUMPABLE, 0)  # after the uid, which resets it
    if _landlock():
        layers.append("landlock")
    return layers


def _die_first() -> None:
    """Let the kernel end these processes before the server when memory is short."""
    # Raising the value needs no right. A machine without /proc has no such choice.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _drop_uid() -> bool:
    try:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:  # a container's root without the capability
        return False
    return True


def _drop_capabilities() -> bool:
    """Drop them even if the uid cannot change (another user, or a container's root)."""
    return bool(_libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24)) == 0)


def _landlock() -> bool:
    """Deny every file, port and outside signal that this kernel's Landlock can deny."""
    version = _libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return False
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    handled = struct.pack("QQQ", files, 0b11, 0b11)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _libc.syscall(
        _LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(size), ctypes.c_uint(0)
    )
    if rules < 0:
        return False
    done = _libc.syscall(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0)) == 0
    os.close(rules)
    return done


def die_with(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def harden_worker(bpf: bytes | None, parent_pid: int, memory: int, cpu_s: int) -> list[str]:
    """Drop the last rights; return the layers.

    Args:
        bpf: The filter, or None to run without one (possible only in a test).
        parent_pid: Process whose end also ends this one.
        memory: Bytes of address space.
        cpu_s: CPU seconds of the whole life, far above the host's limits.

    Raises:
        OSError: A required layer does not hold.
    """
    die_with(parent_pid)
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    if bpf is None:
        return ["rlimits"]
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(bpf) // 8, bpf)))
    try:
        os.stat("/")
    except PermissionError:
        return ["rlimits", "seccomp"]
    raise OSError("the seccomp filter was installed and does not hold")
