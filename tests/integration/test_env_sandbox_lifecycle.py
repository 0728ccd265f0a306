"""Processes of the sandbox: they start confined, stop, end, and are replaced."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from helpers.sandbox_events import below, is_gone, left, pid_of, wait_for

from env.errors import SandboxError
from env.server.sandbox import SandboxHost, SubCall, host
from env.settings import EnvSettings, LimitSettings

LIMITS = LimitSettings(cell_cpu_s=1.0, cell_wall_s=30)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def box() -> Iterator[SandboxHost]:
    with closing(SandboxHost(EnvSettings(limits=LIMITS))) as box:
        yield box


def test_every_layer_of_this_machine_is_named(box: SandboxHost) -> None:
    assert {"no_new_privs", "rlimits", "seccomp"} <= set(box.enforced)
    assert ("uid" in box.enforced) == (os.geteuid() == 0)
    status = Path(f"/proc/{pid_of(box.open(''))}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")
    assert "0" not in fields["Uid"].split()
    assert int(fields["CapEff"], 16) == 0


CRASHES = [
    "1",
    "import os; os._exit(3)",
    "import os; os.write(3, b'x' * 99)",
    "import os; os.abort()",
    "import ctypes; ctypes.string_at(0)",
    "while True: rlm_query_batched(['left'] * 3)",
    "bytearray(10**12)",
]


@pytest.mark.parametrize("cycles", [30, pytest.param(1000, marks=[pytest.mark.nightly])])
def test_nothing_is_left_after_many_crashes(cycles, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    box = SandboxHost(EnvSettings(limits=LIMITS))
    gc.collect()
    before = left()
    for turn in range(cycles):
        repl = box.open("x" * 1000)
        repl.run(CRASHES[turn % len(CRASHES)])
        if turn % 3 == 0 and not repl._pending:
            repl.run("llm_query('left hanging')")
        if turn % 10 == 0:
            os.kill(pid_of(repl), signal.SIGKILL)
        repl.close()
    assert left() == before
    box.close()
    assert os.listdir(tmp_path) == []


def test_closing_a_host_ends_everything() -> None:
    gc.collect()
    before = left()
    box = SandboxHost(EnvSettings(limits=LIMITS))
    repls = [box.open("") for _ in range(5)]
    repls[0].run("llm_query('a')")
    assert len(below(os.getpid()) - before) == 6
    box.close()
    assert left() == before
    with pytest.raises(SandboxError, match="closed"):
        box.open("")
    with pytest.raises(SandboxError):
        repls[1].run("1")
    box.close()


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
from env.settings import EnvSettings, LimitSettings
host = SandboxHost(EnvSettings(limits=LimitSettings(cell_cpu_s=100, cell_wall_s=100)))
large = {"p": "x" * 200_000}
idle, busy = host.open(""), host.open(large, "a template")
print(host._zygote.pid, idle._worker.pid, busy._worker.pid, flush=True)
busy.run("while True: pass")
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        pids = [int(pid) for pid in server.stdout.readline().split()]
        time.sleep(0.3)
        assert len(pids) == 3
        assert not any(map(is_gone, pids))
        server.kill()
    assert wait_for(lambda: all(map(is_gone, pids)))


SAME = """
import random, collections, uuid
words = [w + str(i) for i in range(50) for w in ("a", "é", "Kalvot")]
print(list(set(words))[:5], hash("x"), hash((1.5, "y")), random.random(), random.sample(words, 3))
print(search(context, "kalvet"), {frozenset(words[:3]): 1}, uuid.uuid5(uuid.NAMESPACE_DNS, "x"))
print(sorted(vars(collections.Counter), key=hash)[:9])
print(re)
"""


def test_outputs_are_the_same_in_every_process() -> None:
    """Of two servers with different hash seeds, in two processes each."""
    server = f"""
import sys
from env.server.sandbox import Sandbox
with Sandbox(context={{"p": "Kalvot is. The kalvot was.\\nMirbex"}}) as repl:
    for code in ({SAME!r}, "import os; os._exit(1)", {SAME!r}):
        done = repl.run(code)
        sys.stdout.write(done.stdout + done.traceback + "\\0")
"""
    found = set()
    for seed in ("1", "random"):
        command, env = [sys.executable, "-c", server], {**os.environ, "PYTHONHASHSEED": seed}
        told = subprocess.check_output(command, cwd=ROOT, env=env, text=True)
        first, crashed, same, _ = told.split("\0")
        assert not crashed
        found |= {first, same}
    (output,) = found
    assert "NameError: name 're' is not defined" in output


def test_without_libseccomp_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(SandboxError, match="apt-get install libseccomp2"):
        SandboxHost(EnvSettings(limits=LIMITS))


@pytest.mark.parametrize(
    "program",
    [b"", b"\0" * 16, (0x06).to_bytes(2, "little") + b"\0\0" + (0x7FFF0000).to_bytes(4, "little")],
    ids=["empty", "invalid", "allows everything"],
)
def test_a_filter_that_does_not_hold_stops_the_host(monkeypatch, program):
    gc.collect()
    before = left()
    monkeypatch.setattr(host, "compile_filter", lambda: program)
    with pytest.raises(SandboxError):
        SandboxHost(EnvSettings(limits=LIMITS))
    assert left() == before


FLOOD = """
import os, struct
value = '{"d":[[0,{"s":1}],[2,[{"s":3}]],[4,[[' + ",".join(["[]"] * 30000) + ']]]]}'
texts = ["fn", "rlm_query", "prompts", "x", "contexts"]
lengths = str([len(text) for text in texts])
head = ('{"t":"call","n":1,"v":' + value + ',"b":' + lengths + "}").encode()
body = struct.pack("!I", len(head)) + head + "".join(texts).encode()
frame = struct.pack("!I", len(body)) + body
while True:
    left = memoryview(frame)
    while left:
        left = left[os.write(3, left):]
    for _ in range(60000):
        pass
    os.read(3, 65536)
"""


def test_messages_that_are_slow_to_read_cost_their_sender_no_wall_clock() -> None:
    """Otherwise a policy could make any episode void: the machine would look too busy."""
    limits = LIMITS.model_copy(update={"cell_cpu_s": 0.15, "cell_wall_s": 1.5})
    with closing(SandboxHost(EnvSettings(limits=limits))) as flooded:
        repl = flooded.open({"p1": "a text"})
        event, calls = repl.run(FLOOD), 0
        while isinstance(event, SubCall):
            calls += 1
            event = repl.resume(["no"])
        assert event.error == "cpu", (event.error, calls)
