"""One budget, one clock and one queue for all REPLs: who pays for what."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from helpers.sandbox_events import done, error_of, out, pid_of

from env.errors import SandboxError
from env.server.sandbox import SandboxHost, SubCall
from env.server.sandbox import host as host_module
from env.server.sandbox import repl as repl_module
from env.server.sandbox.usage import private, usage
from env.settings import EnvSettings, LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=0.6, cell_wall_s=2.0, memory_mb=96)
HOLD = "x = 'a' * 70_000_000"
POOL = ThreadPoolExecutor(16)


@pytest.fixture(scope="module")
def box() -> Iterator[SandboxHost]:
    settings = EnvSettings(limits=LIMITS, sandbox=SandboxSettings(running_cells=2))
    with closing(SandboxHost(settings)) as box:
        yield box


@pytest.fixture
def small() -> Iterator[SandboxHost]:
    """REPLs may hold 256 MB together."""
    with closing(SandboxHost(EnvSettings(limits=LIMITS, memory_mb=512))) as small:
        yield small


# --- memory


def test_one_episode_cannot_hold_more_than_the_budget_and_a_neighbour_keeps_its_share(small):
    honest = small.open("", session="honest")
    honest.run("kept = 'b' * 40_000_000")
    greedy = [small.open("", session="greedy") for _ in range(8)]
    errors = [error_of(repl.run(HOLD)) for repl in greedy]
    errors += [error_of(repl.run("len(x)")) for repl in greedy]
    assert errors.count("evicted") >= 5
    assert set(errors) <= {None, "evicted", "exception"}
    assert sum(private(pid_of(repl)) or 0 for repl in (honest, *greedy)) < 300 << 20
    assert out(honest.run("len(kept)")) == "40000000\n"


def test_a_frame_that_waits_for_children_reads_that_it_was_ended(small: SandboxHost) -> None:
    waiting = small.open("", session="greedy")
    assert isinstance(waiting.run(f"{HOLD}\nllm_query('a')"), SubCall)
    for repl in [small.open("", session="greedy") for _ in range(8)]:
        repl.run(HOLD.replace("7", "6"))
    event = done(waiting.resume("b"))
    assert (event.error, event.variables_lost) == ("evicted", True)
    assert error_of(waiting.run("1")) is None


def test_memory_is_that_of_the_kernel_and_shared_pages_count_once(box: SandboxHost) -> None:
    repl = box.open("", session="a")
    repl.run(HOLD)
    assert abs(repl._worker.holding.bytes - private(pid_of(repl))) < 4 << 20


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
    before = worker.held_bytes(usage(worker.pid), exact=True)
    assert error_of(repl.run(TAKE_THE_PLACE.format(flag=flag, advice=advice))) is None
    exact = private(worker.pid) or 0
    assert exact > before + (9 << 20)
    assert worker.holding.bytes > exact - (1 << 20)


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


# --- time


def test_a_cell_asleep_on_its_channel_ends_at_once(box: SandboxHost) -> None:
    """Else a cell could void its episode whenever it fears a low reward."""
    started = time.monotonic()
    event = done(box.open("").run("import os\nos.read(3, 1)"))
    assert (event.error, event.variables_lost) == ("killed", True)
    assert event.cpu_s < 0.1
    assert time.monotonic() - started < LIMITS.cell_wall_s


LATER = """import os, time
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
os.read(3, 1)"""
"""It sleeps in the background lane."""


def test_a_sleeper_that_takes_turns_with_a_loop_ends_as_well(monkeypatch):
    monkeypatch.setattr(repl_module, "_GIVE_UP_S", 2.0)
    limits = LIMITS.model_copy(update={"cell_cpu_s": 5.0, "cell_wall_s": 20.0})
    settings = EnvSettings(limits=limits, sandbox=SandboxSettings(running_cells=1))
    with closing(SandboxHost(settings)) as single:
        loop = POOL.submit(single.open("", session="loop").run, "while True: pass")
        time.sleep(0.3)
        sleeper = POOL.submit(single.open("", session="sleeper").run, LATER)
        assert error_of(sleeper.result()) == "killed"
        assert not loop.done()
    with pytest.raises(SandboxError):
        loop.result()


def test_a_machine_that_never_lets_a_cell_run_gives_no_error(box, monkeypatch):
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


# --- descriptors


def test_workers_of_one_session_take_no_neighbours_processes_and_descriptors(monkeypatch):
    monkeypatch.setattr(host_module, "most_processes", lambda: 100)  # of a container
    with closing(SandboxHost(EnvSettings(limits=LIMITS))) as crowded:
        greedy = [crowded.open("", session="greedy") for _ in range(18)]
        assert isinstance(greedy[0].run("x = 'a' * 9_000_000\nllm_query('a')"), SubCall)
        before = len(os.listdir("/proc/self/fd"))
        honest = [crowded.open("", session="honest") for _ in range(3)]
        assert len(os.listdir("/proc/self/fd")) == before
        assert [error_of(repl.run("1")) for repl in honest] == [None] * 3
        assert error_of(greedy[0].resume("b")) == "evicted"
