"""Processes of the sandbox: they start locked in, stop, end, and are replaced."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from env.errors import SandboxError
from env.server.sandbox import CellDone, Repl, Sandbox, SandboxHost, SubCall, boundary, host
from env.settings import LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=1.0, cell_wall_s=30)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def box() -> Iterator[SandboxHost]:
    box = SandboxHost(LIMITS, SandboxSettings())
    yield box
    box.close()


def out(event: CellDone | SubCall) -> str:
    assert isinstance(event, CellDone), event
    return event.stdout


def pid_of(repl: Repl) -> int:
    worker = repl._worker
    assert worker is not None
    return worker.pid


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def wait_for(condition: object, seconds: float = 10.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def children() -> set[int]:
    """Process ids of this process's children and grandchildren."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    mine = {pid for pid, parent in parents.items() if parent == os.getpid()}
    return mine | {pid for pid, parent in parents.items() if parent in mine}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_every_layer_of_this_machine_is_named(box: SandboxHost) -> None:
    assert {"no_new_privs", "rlimits", "seccomp"} <= set(box.enforced)
    assert ("uid" in box.enforced) == (os.geteuid() == 0)
    status = Path(f"/proc/{pid_of(box.open(''))}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")
    assert "0\t" not in fields["Uid"]
    assert int(fields["CapEff"], 16) == 0


def test_a_worker_holds_its_channel_and_nothing_else(box: SandboxHost) -> None:
    pid = pid_of(box.open("x"))
    if os.geteuid() != 0:
        pytest.skip("a worker's descriptors can be listed by root only")
    held = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert {fd: name for fd, name in held.items() if fd < 3} == dict.fromkeys(range(3), "/dev/null")
    assert held[3].startswith("socket:")
    assert len(held) == 4


def test_idle_and_suspended_workers_are_stopped(box: SandboxHost) -> None:
    repl = box.open("")
    assert wait_for(lambda: state_of(pid_of(repl)) == "T")
    repl.run("x = 1")
    assert wait_for(lambda: state_of(pid_of(repl)) == "T")
    repl.run("llm_query('a')")
    assert wait_for(lambda: state_of(pid_of(repl)) == "T")
    assert out(repl.resume("b")) == "'b'\n"


def test_nothing_is_left_after_many_crashes(box: SandboxHost) -> None:
    box.open("").close()
    before = children(), descriptors()
    for turn in range(60):
        repl = box.open("x" * 1000)
        repl.run(["1", "import os; os._exit(3)", "import os; os.write(3, b'x' * 99)"][turn % 3])
        if turn % 2:
            repl.run("llm_query('left hanging')")
        repl.close()
    assert (children(), descriptors()) == before


def test_closing_a_host_ends_everything() -> None:
    before = children(), descriptors()
    box = SandboxHost(LIMITS, SandboxSettings())
    repls = [box.open("") for _ in range(5)]
    repls[0].run("llm_query('a')")
    assert len(children()) == len(before[0]) + 6
    box.close()
    assert (children(), descriptors()) == before
    with pytest.raises(SandboxError, match="closed"):
        box.open("")
    with pytest.raises(SandboxError):
        repls[1].run("1")
    box.close()


def test_a_killed_zygote_is_replaced_and_its_repls_are_lost(box: SandboxHost) -> None:
    idle, asking = box.open(""), box.open("")
    asking.run("llm_query('a')")
    pids = [pid_of(idle), pid_of(asking)]
    os.kill(box._zygote.pid, signal.SIGKILL)
    assert wait_for(lambda: not box._zygote.alive)
    with pytest.raises(SandboxError):
        idle.run("1")
    with pytest.raises(SandboxError):
        asking.resume("b")
    assert wait_for(lambda: all(state_of(pid) in ("gone", "Z") for pid in pids))
    assert out(box.open("").run("1 + 1")) == "2\n"
    with pytest.raises(SandboxError):
        idle.run("1")


def test_a_zygote_killed_in_the_middle_of_a_cell(box: SandboxHost) -> None:
    repl = box.open("")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(repl.run, "while True: pass")
        time.sleep(0.2)
        os.kill(box._zygote.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            running.result(timeout=10)


def test_a_worker_killed_from_outside_is_no_mistake_of_the_policy(box: SandboxHost) -> None:
    repl = box.open("")
    os.kill(pid_of(repl), signal.SIGKILL)
    with pytest.raises(SandboxError, match="killed from outside"):
        repl.run("1")
    assert out(box.open("").run("1")) == "1\n"


def test_close_ends_a_cell_that_runs_in_another_thread(box: SandboxHost) -> None:
    repl = box.open("")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(repl.run, "while True: pass")
        time.sleep(0.2)
        repl.close()
        with pytest.raises(SandboxError):
            running.result(timeout=5)


def test_nothing_outlives_a_killed_server() -> None:
    code = """
import os, sys, time
from env.server.sandbox import SandboxHost
from env.settings import LimitSettings, SandboxSettings
host = SandboxHost(LimitSettings(cell_cpu_s=100, cell_wall_s=100), SandboxSettings())
idle, busy = host.open(""), host.open("")
print(host._zygote.pid, idle._worker.pid, busy._worker.pid, flush=True)
busy.run("while True: pass")
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = [int(pid) for pid in server.stdout.readline().split()]
        time.sleep(0.3)
        assert len(pids) == 3
        assert "gone" not in map(state_of, pids)
        server.kill()
    assert wait_for(lambda: all(state_of(pid) in ("gone", "Z") for pid in pids))


def test_many_threads_use_many_repls_at_once(box: SandboxHost) -> None:
    def play(number: int) -> str:
        repl = box.open({"n": str(number)})
        repl.run("total = 0")
        event = repl.run("for i in range(20): total += int(llm_query(context['n']))\nprint(total)")
        while isinstance(event, SubCall):
            event = repl.resume(event.prompts[0])
        repl.close()
        return event.stdout

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(play, range(48))) == [f"{20 * n}\n" for n in range(48)]


def test_waiting_for_a_slot_is_not_the_cells_time() -> None:
    box = SandboxHost(
        LIMITS.model_copy(update={"cell_wall_s": 3.0}), SandboxSettings(running_cells=1)
    )
    work = "s = 0\nfor i in range(3_000_000): s += i\nprint('ready')"
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda repl: repl.run(work), [box.open("") for _ in range(6)]))
    assert [result.stdout for result in results] == ["ready\n"] * 6
    box.close()


def test_descriptors_past_1024_work(box: SandboxHost) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1400:
        pytest.skip("this machine allows no descriptor past 1024")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    held = [os.dup(0) for _ in range(1100)]
    try:
        assert out(box.open("").run("1")) == "1\n"
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_hosts_give_the_same_outputs() -> None:
    code = """
import random, collections
words = [w + str(i) for i in range(50) for w in ("a", "é", "Kalvot")]
print(list(set(words))[:5], hash("x"), random.random(), random.sample(words, 3))
print(search(context, "kalvet"), sorted({frozenset(words[:3]): 1}.items(), key=str))
"""
    outputs = set()
    for _ in range(2):
        with Sandbox(LIMITS, {"p": "Kalvot is. The kalvot was.\nMirbex"}) as repl:
            outputs.add(out(repl.run(code)))
            repl.run("import os; os._exit(1)")
            outputs.add(out(repl.run(code)))
    assert len(outputs) == 1
    assert outputs.pop()


def test_without_libseccomp_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(SandboxError, match="apt-get install libseccomp2"):
        SandboxHost(LIMITS, SandboxSettings())


def test_elsewhere_than_on_linux_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary.sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="needs Linux"):
        SandboxHost(LIMITS, SandboxSettings())


@pytest.mark.parametrize(
    "program",
    [b"", b"\0" * 16, (0x06).to_bytes(2, "little") + b"\0\0" + (0x7FFF0000).to_bytes(4, "little")],
    ids=["empty", "invalid", "allows everything"],
)
def test_a_filter_that_does_not_hold_stops_the_host(
    monkeypatch: pytest.MonkeyPatch, program: bytes
) -> None:
    before = children(), descriptors()
    monkeypatch.setattr(host, "compile_filter", lambda: program)
    with pytest.raises(SandboxError):
        SandboxHost(LIMITS, SandboxSettings())
    assert (children(), descriptors()) == before


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
def test_an_ordinary_user_is_as_safe() -> None:
    """User 1000, who may read this checkout wherever it lies and nothing more."""
    code = """
from env.server.sandbox import Sandbox
from env.settings import LimitSettings
box = Sandbox(LimitSettings(cell_cpu_s=0.3, cell_wall_s=60))
assert "seccomp" in box._host.enforced and "uid" not in box._host.enforced, box._host.enforced
print(box.run("import os\\nos.listdir('/')").traceback)
print(box.run("while True: pass").error, box.run("import os; os._exit(1)").error)
print(box.run("6 * 7").stdout)
box.close()
"""
    become = "setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set -all,+dac_read_search"
    become += " --inh-caps -all,+dac_read_search --ambient-caps +dac_read_search"
    run = subprocess.run(
        [*become.split(), sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "PermissionError" in run.stdout
    assert "cpu exit\n42" in run.stdout
