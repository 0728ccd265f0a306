"""One budget, one clock and one queue for all REPLs: who pays for what."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.sandbox_events import pid_of

from env.errors import SandboxError
from env.server.sandbox import CellDone, Repl, SandboxHost, SubCall
from env.server.sandbox import host as host_module
from env.server.sandbox import repl as repl_module
from env.server.sandbox.process import WorkerProcess
from env.server.sandbox.usage import private, usage
from env.settings import LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=0.6, cell_wall_s=2.0, memory_mb=96)
HOLD = "x = 'a' * 70_000_000"
SLEEP = "import os\nos.read(3, 1)"
POOL = ThreadPoolExecutor(16)


@pytest.fixture(scope="module")
def box() -> Iterator[SandboxHost]:
    box = SandboxHost(LIMITS, SandboxSettings(running_cells=2))
    yield box
    box.close()


@pytest.fixture(scope="module")
def small_host() -> Iterator[SandboxHost]:
    small = SandboxHost(LIMITS, SandboxSettings(), memory_mb=512)
    yield small
    small.close()


@pytest.fixture
def small(small_host: SandboxHost) -> Iterator[SandboxHost]:
    """REPLs may hold 256 MB together."""
    yield small_host
    for repl in list(small_host._repls):
        repl.close()


def error_of(event: CellDone | SubCall) -> str | None:
    assert isinstance(event, CellDone), event
    return event.error


def held(repls: list[Repl]) -> int:
    return sum(private(pid_of(repl)) or 0 for repl in repls)


def estimate(worker: WorkerProcess, exact: bool = False) -> int:
    now = usage(worker.pid)
    assert now is not None
    return worker.held_bytes(now, exact)


# --- memory


def test_one_episode_cannot_hold_more_than_the_budget(small: SandboxHost) -> None:
    repls = [small.open("", session="greedy") for _ in range(8)]
    errors = [error_of(repl.run(HOLD)) for repl in repls]
    errors += [error_of(repl.run("len(x)")) for repl in repls]
    assert errors.count("evicted") >= 5
    assert set(errors) <= {None, "evicted", "exception"}
    assert held(repls) < 300 << 20


def test_a_neighbour_within_its_share_keeps_its_variables(small: SandboxHost) -> None:
    honest = small.open("", session="honest")
    honest.run("kept = 'b' * 40_000_000")
    for repl in [small.open("", session="greedy") for _ in range(8)]:
        repl.run(HOLD)
    event = honest.run("len(kept)")
    assert isinstance(event, CellDone)
    assert event.stdout == "40000000\n"


def test_room_is_made_by_a_worker_and_never_by_its_successor(small: SandboxHost) -> None:
    """Between the ledger's choice and the end, the worker may end by itself."""
    repl = small.open("", session="greedy")
    assert repl._worker is not None
    chosen = repl._worker.holding
    assert error_of(repl.run("import os\nos._exit(3)")) == "exit"
    chosen.end(chosen)
    assert error_of(repl.run("1")) is None


def test_a_frame_that_waits_for_children_reads_that_it_was_ended(small: SandboxHost) -> None:
    waiting = small.open("", session="greedy")
    assert isinstance(waiting.run(f"{HOLD}\nllm_query('a')"), SubCall)
    for repl in [small.open("", session="greedy") for _ in range(8)]:
        repl.run(HOLD.replace("7", "6"))
    event = waiting.resume("b")
    assert isinstance(event, CellDone)
    assert (event.error, event.variables_lost) == ("evicted", True)
    assert error_of(waiting.run("1")) is None


def test_memory_is_that_of_the_kernel_and_shared_pages_count_once(box: SandboxHost) -> None:
    repl = box.open("", session="a")
    repl.run(HOLD)
    worker = repl._worker
    assert worker is not None
    exact = private(worker.pid)
    assert exact is not None
    assert abs(estimate(worker) - exact) < 4 << 20


def test_copied_pages_count(box: SandboxHost) -> None:
    repl = box.open("", session="a")
    repl.run("x = 1")
    worker = repl._worker
    assert worker is not None
    before = estimate(worker)
    repl.run("import gc\ngc.unfreeze()\nn = gc.collect()")
    exact = private(worker.pid) or 0
    assert exact > before + (2 << 20)
    assert exact <= estimate(worker) < exact + (4 << 20)


TAKE_THE_PLACE = """
import ctypes, mmap
libc = ctypes.CDLL(None)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise(id(context) + 8191 & ~4095, 10 << 20, 4)
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | {flag}
pages = mmap.mmap(-1, 12 << 20, flags=flags)
at = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + (2 << 20) & ~((2 << 20) - 1)
libc.madvise(at, 10 << 20, {advice})
x = ctypes.memset(at, 1, 10 << 20)
"""
"""Drops the shared text of the context, and takes as many pages of its own."""


@pytest.mark.parametrize(
    ("flag", "advice"), [(0, 14), (0x8000, 15), (0, 23)], ids=["huge", "populated", "by advice"]
)
def test_pages_in_the_place_of_shared_ones_count(box: SandboxHost, flag: int, advice: int) -> None:
    """Neither the resident size nor the exact reading of an earlier cell shows them."""
    repl = box.open("x" * (11 << 20), "a shared text", session="a")
    worker = repl._worker
    assert worker is not None
    before = estimate(worker, exact=True)
    assert error_of(repl.run(TAKE_THE_PLACE.format(flag=flag, advice=advice))) is None
    exact = private(worker.pid) or 0
    assert exact > before + (9 << 20)
    assert worker.holding.bytes > exact - (1 << 20)


def test_no_worker_has_huge_pages(box: SandboxHost) -> None:
    repl = box.open("")
    repl.run("x = bytearray(40 << 20)")
    rollup = Path(f"/proc/{pid_of(repl)}/smaps_rollup").read_text().splitlines()
    assert [line.split()[1] for line in rollup if line.startswith("AnonHuge")] == ["0"]
    assert "THP_enabled:\t0" in Path(f"/proc/{pid_of(repl)}/status").read_text()


def test_a_worker_killed_beyond_its_share_is_to_blame_itself(small: SandboxHost) -> None:
    repl = small.open("", session="greedy")
    others = [small.open("", session=str(n)) for n in range(4)]
    assert error_of(repl.run(HOLD)) is None
    os.kill(pid_of(repl), signal.SIGKILL)
    assert error_of(repl.run("1")) == "memory"
    os.kill(pid_of(others[0]), signal.SIGKILL)
    with pytest.raises(SandboxError, match="killed from outside"):
        others[0].run("1")


def test_the_kernel_ends_a_worker_before_the_server(box: SandboxHost) -> None:
    repl = box.open("")
    for pid in (box._zygote.pid, pid_of(repl)):
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"


def test_memory_that_nobody_could_count_is_refused(box: SandboxHost) -> None:
    event = box.open("").run("import mmap\nmmap.mmap(-1, 4096)")
    assert isinstance(event, CellDone)
    assert "PermissionError" in event.traceback


# --- time


def test_a_cell_asleep_on_its_channel_ends_at_once(box: SandboxHost) -> None:
    started = time.monotonic()
    event = box.open("").run(SLEEP)
    assert isinstance(event, CellDone)
    assert (event.error, event.variables_lost) == ("killed", True)
    assert event.cpu_s < 0.1
    assert time.monotonic() - started < LIMITS.cell_wall_s


LATER = """import os, time
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
os.read(3, 1)"""
"""It sleeps in the background lane."""


def test_a_sleeper_that_takes_turns_with_a_loop_ends_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repl_module, "_GIVE_UP_S", 2.0)
    limits = LIMITS.model_copy(update={"cell_cpu_s": 5.0, "cell_wall_s": 20.0})
    single = SandboxHost(limits, SandboxSettings(running_cells=1))
    try:
        loop = POOL.submit(single.open("", session="loop").run, "while True: pass")
        time.sleep(0.3)
        sleeper = POOL.submit(single.open("", session="sleeper").run, LATER)
        assert error_of(sleeper.result()) == "killed"
        assert not loop.done()
    finally:
        single.close()
    with pytest.raises(SandboxError):
        loop.result()


def test_an_endless_loop_is_never_starved(
    box: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repl_module, "_GIVE_UP_S", 20.0)  # beside tests in other processes
    assert error_of(box.open("").run("while True: pass")) == "cpu"


def stopped(pids: list[int], seconds: float, running: Future[CellDone | SubCall]) -> str | None:
    """The error of a cell while processes were stopped from outside."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return error_of(running.result())


COMPUTE = "s = 0\nfor i in range(2_000_000): s += i"


def test_a_worker_stopped_from_outside_is_no_mistake_of_the_policy(box: SandboxHost) -> None:
    repl = box.open("")
    running = POOL.submit(repl.run, COMPUTE)
    time.sleep(0.05)
    assert stopped([pid_of(repl)], LIMITS.cell_wall_s + 1, running) is None


def test_a_stopped_zygote_is_no_mistake_of_the_policy(box: SandboxHost) -> None:
    os.kill(box._zygote.pid, signal.SIGSTOP)
    opening = POOL.submit(box.open, "")
    time.sleep(LIMITS.cell_wall_s + 1)
    os.kill(box._zygote.pid, signal.SIGCONT)
    assert error_of(opening.result().run("1")) is None


def test_a_machine_that_never_lets_a_cell_run_gives_no_error(
    box: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repl_module, "_GIVE_UP_S", 1.0)
    repl = box.open("")
    running = POOL.submit(repl.run, "while True: pass")
    time.sleep(0.05)
    os.kill(pid_of(repl), signal.SIGSTOP)
    assert error_of(running.result()) == "starved"
    assert error_of(repl.run("1")) is None


# --- slots


def test_endless_loops_of_others_do_not_keep_a_short_cell_waiting(box: SandboxHost) -> None:
    loops = [box.open("", session=f"greedy {n}") for n in range(4)]
    honest = box.open("", session="honest")
    running = [POOL.submit(repl.run, "while True: pass") for repl in loops]
    time.sleep(0.2)
    waits = []
    while not all(loop.done() for loop in running):
        started = time.monotonic()
        assert error_of(honest.run("x = 1")) is None
        waits.append(time.monotonic() - started)
        time.sleep(0.01)
    assert [error_of(loop.result()) for loop in running] == ["cpu"] * 4
    assert sorted(waits)[len(waits) // 2] < 0.5


def test_cells_that_take_turns_keep_their_limits_and_variables(box: SandboxHost) -> None:
    repls = [box.open("", session=n) for n in range(6)]
    running = [POOL.submit(repl.run, COMPUTE) for repl in repls]
    assert [error_of(cell.result()) for cell in running] == [None] * 6
    total = sum(range(2_000_000))
    assert all(repl.run("s").stdout == f"{total}\n" for repl in repls)  # type: ignore[union-attr]


def test_a_long_cell_runs_behind_the_server_and_short_cells(box: SandboxHost) -> None:
    repl = box.open("")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    repl.run("x = 1")
    assert os.getpriority(os.PRIO_PROCESS, pid_of(repl)) == own
    repl.run("import time\nwhile time.process_time() < 0.4: pass")
    assert os.getpriority(os.PRIO_PROCESS, pid_of(repl)) == own + 5


def test_a_worker_is_replaced_without_a_slot(
    box: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = box._shared.slots
    all_of_them = slots._free
    repl = box.open("")
    free: list[int] = []
    start = repl._start
    monkeypatch.setattr(repl, "_start", lambda: (free.append(slots._free), start())[1])
    for code in (SLEEP, "import os\nos._exit(3)", "import os\nos.write(3, b'junk' * 9)"):
        repl.run(code)
    assert free == [all_of_them] * 3


# --- descriptors


def test_workers_of_one_session_take_no_neighbours_descriptors(
    box: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box._shared.ledger, "most", len(box._shared.ledger._holdings) + 8)
    greedy = [box.open("", session="greedy of descriptors") for _ in range(8)]
    assert isinstance(greedy[0].run("x = 'a' * 9_000_000\nllm_query('a')"), SubCall)
    before = len(os.listdir("/proc/self/fd"))
    honest = [box.open("", session="honest of descriptors") for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [error_of(repl.run("1")) for repl in honest] == [None] * 3
    assert error_of(greedy[0].resume("b")) == "evicted"
    for repl in greedy + honest:
        repl.close()


def test_processes_of_a_container_limit_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "most_processes", lambda: 100)
    crowded = SandboxHost(LIMITS, SandboxSettings())
    try:
        greedy = [crowded.open("", session="greedy") for _ in range(18)]
        honest = crowded.open("", session="honest")
        assert error_of(honest.run("1")) is None
        assert [error_of(repl.run("1")) for repl in greedy].count("evicted") >= 1
    finally:
        crowded.close()


def test_a_repl_waits_for_a_descriptor_that_strangers_hold(
    box: SandboxHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real: Callable[..., tuple[socket.socket, socket.socket]] = socket.socketpair

    def full(*args: object) -> tuple[socket.socket, socket.socket]:
        if threading.current_thread() is threading.main_thread() and len(calls) < 2:
            raise OSError(24, "Too many open files")
        return real(*args)

    monkeypatch.setattr(socket, "socketpair", full)
    monkeypatch.setattr(box._zygote, "_relieve", lambda: calls.append(1))
    assert error_of(box.open("").run("1")) is None
    assert calls == [1, 1]


@pytest.mark.parametrize("freed", [2, 9], ids=["a copy for each", "a template"])
def test_a_context_waits_for_a_descriptor_that_strangers_hold(
    box: SandboxHost, monkeypatch: pytest.MonkeyPatch, freed: int
) -> None:
    """Two free descriptors are enough for a worker, and too few for a template."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []

    def relieve() -> None:
        for _ in range(freed):
            os.close(held.pop())

    monkeypatch.setattr(box._zygote, "_relieve", relieve)
    name, text = f"a text of strangers {freed}", "x" * 130_000
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 12, hard)
    )
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        assert error_of(box.open(text, name).run("1")) is None
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (name in box._templates._held) == (freed > 2)
