"""The system-call filter of each architecture, run on every call by an interpreter of BPF.

aarch64 is simulated here and untested on hardware; x86_64 is what the attacks run against.
"""

import operator
import struct
from collections.abc import Sequence
from functools import cache

import pyseccomp
import pytest
from helpers.sandbox_attacks import numbers

from env.errors import SandboxError
from env.server.sandbox import boundary

MACHINES = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ETIMEDOUT = ERRNO | 1, ERRNO | 110
COMPUTING = ["brk", "munmap", "mremap"]
COMPUTING += ["gettimeofday", "time", "sched_yield", "getrandom", "rt_sigreturn"]
COMPUTING += ["restart_syscall", "exit", "exit_group"]
BY_ARGUMENT = ["read", "write", "mmap", "mprotect", "madvise", "futex"]
BY_ARGUMENT += ["clock_gettime", "clock_getres"]
READ, WRITE, EXEC, ANONYMOUS, PRIVATE, SHARED = 1, 2, 4, 0x20, 2, 1
HUGETLB = 0x40000
HIGH = 1 << 32


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- classic BPF, as the kernel runs it on a call

LOAD_WORD, RETURN, RETURN_A, AND, JUMP = 0x20, 0x06, 0x16, 0x54, 0x05
COMPARE = {0x15: operator.eq, 0x25: operator.gt, 0x35: operator.ge, 0x45: operator.and_}


def decide(program: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """The decision of the filter: ALLOW, KILL_PROCESS, or ERRNO with the error's number.

    Args:
        program: Instructions of 8 bytes.
        arch: AUDIT_ARCH value of the call's table.
        number: The call's number, 32 bits.
        arguments: Up to six, 64 bits each.

    Raises:
        LookupError: An instruction that libseccomp does not use here, or a way out of the program.
    """
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *([0] * (6 - len(arguments))))
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, constant = code[at]
        at += 1
        if operation == LOAD_WORD:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif operation == AND:
            accumulator &= constant
        elif operation == JUMP:
            at += constant
        elif operation in (RETURN, RETURN_A):
            return int(constant if operation == RETURN else accumulator)
        else:
            at += if_true if COMPARE[operation](accumulator, constant) else if_false


# --- the calls that are tried


@cache
def program(machine: str) -> bytes:
    return boundary.compile_filter(machine)


@cache
def names(machine: str) -> dict[str, int]:
    return numbers(MACHINES[machine])


def ask(machine: str, name: str, *arguments: int) -> int:
    return decide(program(machine), MACHINES[machine], names(machine)[name], arguments)


def test_both_tables_are_large_enough_to_mean_something() -> None:
    for machine, expected in (("x86_64", 340), ("aarch64", 290)):
        assert len(names(machine)) > expected
    shared = set(names("x86_64")) & set(names("aarch64"))
    assert {"read", "openat", "execve", "clone3", "io_uring_enter", "ptrace"} <= shared


def test_calls_without_a_rule_are_refused_whatever_their_arguments(machine: str) -> None:
    for name in set(names(machine)) - {*COMPUTING, *BY_ARGUMENT}:
        for values in ((), (3, 0, 3, ANONYMOUS), (3,) * 6, (2**64 - 1,) * 6):
            assert ask(machine, name, *values) == EPERM, name


def test_numbers_that_name_no_call_are_refused(machine: str) -> None:
    for number in (*set(range(1024)) - set(names(machine).values()), 5000, 0x3FFFFFFF):
        assert decide(program(machine), MACHINES[machine], number, (3,)) == EPERM


def test_calls_that_compute_are_allowed(machine: str) -> None:
    there = [name for name in COMPUTING if name in names(machine)]
    assert set(COMPUTING) - set(there) <= {"time"}  # aarch64 has none
    for name in there:
        assert ask(machine, name) == ask(machine, name, *(2**64 - 1,) * 6) == ALLOW


@pytest.mark.parametrize("name", ["read", "write"])
def test_reading_and_writing_are_for_the_channel_alone(machine: str, name: str) -> None:
    assert ask(machine, name, 3, 1, 1) == ALLOW
    for fd in (0, 1, 2, 4, 1023, 0xFFFFFFFF, HIGH | 3, 2**64 - 1):
        assert ask(machine, name, fd, 1, 1) == EPERM


def test_no_memory_is_executable_or_of_a_file(machine: str) -> None:
    assert ask(machine, "mmap", 0, 4096, READ | WRITE, PRIVATE | ANONYMOUS) == ALLOW
    assert ask(machine, "mmap", 0, 4096, READ | WRITE, PRIVATE, 3) == EPERM
    assert ask(machine, "mprotect", 0, 4096, READ | WRITE) == ALLOW
    for protection in (EXEC, READ | EXEC, READ | WRITE | EXEC, 0xFFFFFFFF, HIGH | EXEC):
        assert ask(machine, "mmap", 0, 4096, protection, PRIVATE | ANONYMOUS) == EPERM
        assert ask(machine, "mprotect", 0, 4096, protection) == EPERM


def test_no_memory_is_shared_or_of_huge_pages(machine: str) -> None:
    """The process does not count a shared mapping, and the host one page for each fault."""
    huge = [PRIVATE | ANONYMOUS | HUGETLB | size for size in (0, 21 << 26, 30 << 26)]
    shared = [SHARED | ANONYMOUS, SHARED | PRIVATE | ANONYMOUS, HIGH | SHARED | ANONYMOUS]
    for flags in (*huge, *shared):
        assert ask(machine, "mmap", 0, 1 << 21, READ | WRITE, flags) == EPERM


@pytest.mark.parametrize("name", ["clock_gettime", "clock_getres"])
def test_clocks_are_those_of_the_machine_and_not_of_a_process(machine: str, name: str) -> None:
    for clock in range(12):
        assert ask(machine, name, clock) == ALLOW
    for pid in (1, 2, 4194304):
        of_process = (~pid << 3 | 2) & 0xFFFFFFFF
        for clock in (of_process, HIGH * 0xFFFFFFFF | of_process, HIGH | 1, 12, 16):
            assert ask(machine, name, clock) == EPERM


def test_memory_is_given_back_and_never_paged_out(machine: str) -> None:
    for advice in (4, 8, 15):
        assert ask(machine, "madvise", 0, 4096, advice) == ALLOW
    for advice in (0, 3, 9, 10, 12, 14, 20, 21, 22, 23, 100, HIGH | 4):
        assert ask(machine, "madvise", 0, 4096, advice) == EPERM


def test_a_futex_wakes_and_never_waits(machine: str) -> None:
    wait, wake, wait_bitset, wake_bitset, private, clock = 0, 1, 9, 10, 128, 256
    for flags in (0, private, clock, private | clock):
        for operation in (wait, wait_bitset):
            assert ask(machine, "futex", 0, operation | flags) == ETIMEDOUT
        for operation in (wake, wake_bitset):
            assert ask(machine, "futex", 0, operation | flags) == ALLOW
    for operation in (2, 3, 4, 5, 6, 7, 8, 11, 12, 13):
        assert ask(machine, "futex", 0, operation) == EPERM


def test_a_foreign_table_kills(machine: str) -> None:
    arch = pyseccomp.Arch
    others = {arch.X86, arch.X32, arch.ARM, arch.RISCV64, *MACHINES.values(), 0, 0xFFFFFFFF}
    for other in others - {MACHINES[machine]}:
        for number in (0, 1, 3, 60, 63, 93, 222):
            assert decide(program(machine), other, number, (3,)) == KILL_PROCESS


def test_the_x32_table_kills() -> None:
    for number in (*range(600), 0x3FFFFFFE):
        killed = decide(program("x86_64"), pyseccomp.Arch.X86_64, 0x40000000 | number, (3,))
        assert killed == KILL_PROCESS


def test_another_machine_is_refused() -> None:
    with pytest.raises(SandboxError, match="riscv64"):
        boundary.compile_filter("riscv64")


def test_a_filter_that_allows_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of this file."""
    monkeypatch.setattr(boundary, "_ALLOWED", (*boundary._ALLOWED, "openat"))
    looser = boundary.compile_filter("aarch64")
    assert decide(looser, MACHINES["aarch64"], names("aarch64")["openat"]) == ALLOW
