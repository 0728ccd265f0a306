"""Hostile cells, one test for each class. Code that gets what it wants prints ESCAPED.

The negative control runs the same code without the system-call filter, where some of it must get
through: so these tests can fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from pyseccomp import Arch, resolve_syscall

from env.server.sandbox import UNSET, CellDone, Repl, SandboxHost, SubCall
from env.settings import LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=0.3, cell_wall_s=20, memory_mb=64, observation_chars=2000)
SECRET = "gold-4f1c9a"


class UnfilteredHost(SandboxHost):
    """The negative control: every layer but the system-call filter."""

    _seccomp = False


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    os.environ["RLM_TEST_SECRET"] = SECRET
    host = SandboxHost(LIMITS, SandboxSettings())
    yield host
    host.close()
    del os.environ["RLM_TEST_SECRET"]


@pytest.fixture(scope="module")
def neighbour(host: SandboxHost) -> Repl:
    """Another episode's REPL, with something worth stealing and a variable to lose."""
    repl = host.open({"p1": f"the {SECRET} of another"})
    repl.run("mine = [1, 2, 3]")
    return repl


@pytest.fixture
def repl(host: SandboxHost, neighbour: Repl) -> Iterator[Repl]:
    """A REPL to attack from; afterwards it and its neighbour must still work."""
    repl = host.open({"p1": "text"})
    yield repl
    assert done(neighbour.run("sum(mine)")).stdout == "6\n"
    assert done(repl.run("search(context, 'text')['p1']")).stdout == "['text']\n"
    repl.close()


def done(event: CellDone | SubCall) -> CellDone:
    assert isinstance(event, CellDone), event
    return event


PREAMBLE = """
import ctypes, os, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try:
        result = action()
    except Exception as error:
        return
    if result != -1:
        print("ESCAPED", name, repr(result)[:80])
"""


def attack(repl: Repl, code: str) -> CellDone:
    repl.run(PREAMBLE)
    return done(repl.run(code))


FILES = """
attempt("read", lambda: open("/etc/hostname").read())
attempt("read self", lambda: open(os.__spec__.origin).read())
attempt("write", lambda: open("/tmp/x", "w"))
attempt("list", lambda: os.listdir("/"))
attempt("stat", lambda: os.stat("/"))
attempt("chmod", lambda: os.chmod("/tmp", 0o777))
attempt("rename", lambda: os.rename("/tmp/a", "/tmp/b"))
attempt("unlink", lambda: os.unlink("/tmp/a"))
attempt("mkdir", lambda: os.mkdir("/tmp/sandbox-test"))
attempt("chdir", lambda: os.chdir("/"))
attempt("cwd", lambda: os.getcwd())
attempt("temporary", lambda: __import__("tempfile").TemporaryFile())
attempt("symlink", lambda: os.symlink("/etc/passwd", "/tmp/sandbox-link"))
import importlib.machinery
attempt("source", lambda: importlib.machinery.SourceFileLoader("m", "/etc/hostname").get_data(
    "/etc/hostname"))
attempt("import", lambda: __import__("sqlite3"))
"""

PROC = """
for who in ("self", str(os.getppid()), "1"):
    for what in ("environ", "mem", "maps", "cmdline", "fd", "root/etc/hostname"):
        attempt(who + what, lambda: open(f"/proc/{who}/{what}", "rb").read(100))
"""

NETWORK = """
attempt("tcp", lambda: socket.create_connection(("127.0.0.1", 1), 1))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("unix", lambda: socket.socket(socket.AF_UNIX))
attempt("raw", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("pair", lambda: socket.socketpair())
attempt("names", lambda: socket.getaddrinfo("localhost", 80))
attempt("channel", lambda: socket.socket(fileno=3))
"""

PROCESSES = """
attempt("system", lambda: -1 if os.system("true") else 0)
attempt("subprocess", lambda: subprocess.run(["true"]))
attempt("Popen of a subclass list", lambda: [c for c in object.__subclasses__()
    if c.__name__ == "Popen"][0](["true"]))
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}))
for _ in range(50):
    attempt("fork", lambda: os.fork())
import threading
for _ in range(500):
    attempt("thread", lambda: threading.Thread(target=print).start())
attempt("kill parent", lambda: os.kill(os.getppid(), 9))
attempt("kill all", lambda: os.kill(-1, 9))
attempt("kill self", lambda: os.kill(os.getpid(), 0))
attempt("memfd", lambda: os.memfd_create("x"))
attempt("shared memory", lambda: libc.shmget(0, 4096, 0o1600))
"""

INTROSPECTION = f"""
import gc
def scan(things):
    for thing in things:
        if isinstance(thing, str) and "{SECRET[::-1]}" in thing[::-1]:
            print("ESCAPED", thing[:80])
gc.unfreeze()
everything = gc.get_objects()
for thing in everything:
    for part in gc.get_referents(thing):
        scan([part])
frame = sys._getframe()
while frame:
    scan(map(str, frame.f_locals.values()))
    scan(map(str, frame.f_globals.values()))
    frame = frame.f_back
try:
    1 / 0
except ZeroDivisionError as error:
    scan(map(str, error.__traceback__.tb_frame.f_back.f_globals.values()))
scan(os.environ.values())
for function in (search, llm_query, FINAL):
    scan(map(str, vars(function.__self__).values()))
    scan(map(str, function.__func__.__globals__.values()))
    scan(map(str, function.__func__.__closure__ or ()))
scan(["{{0.__self__.__class__.__init__.__globals__}}".format(search)])
scan([str(__import__("random")._os.environ), str(vars(print.__self__))])
print(len(everything) > 5000)
"""


@pytest.mark.parametrize(
    "code",
    [FILES, PROC, NETWORK, PROCESSES, INTROSPECTION],
    ids=["files", "proc", "network", "processes", "introspection"],
)
def test_nothing_outside_is_reached(repl: Repl, code: str) -> None:
    result = attack(repl, code)
    assert "ESCAPED" not in result.stdout
    assert result.error is None, result.traceback  # it ran to its end
    assert not result.variables_lost


def test_the_scan_finds_what_is_there(neighbour: Repl) -> None:
    assert "ESCAPED" in attack(neighbour, INTROSPECTION).stdout


RAW = (
    "openat open creat execve execveat fork vfork clone clone3 socket socketpair connect bind "
    "sendto sendmsg recvfrom recvmsg io_uring_setup io_uring_enter ptrace process_vm_readv "
    "process_vm_writev memfd_create memfd_secret shmget userfaultfd bpf perf_event_open keyctl "
    "add_key unshare setns mount pivot_root chroot kill tkill tgkill pidfd_open pidfd_getfd "
    "pidfd_send_signal prctl prlimit64 setrlimit setuid setresuid setgroups capset personality "
    "rt_sigaction rt_sigprocmask setitimer timer_create nanosleep clock_nanosleep pause ppoll "
    "select pselect6 epoll_create1 eventfd2 signalfd4 timerfd_create inotify_init1 dup dup2 dup3 "
    "fcntl ioctl pipe2 close shutdown readv writev pread64 pwrite64 sendfile splice vmsplice tee "
    "mlock mlockall mbind pkey_mprotect modify_ldt arch_prctl seccomp landlock_restrict_self "
    "reboot kexec_load init_module swapon syslog sched_setaffinity setpriority getdents64 "
    "newfstatat statx readlinkat chdir umask utimensat acct quotactl"
    " name_to_handle_at open_by_handle_at"
)


def raw_calls(names: list[str]) -> str:
    numbers = {name: resolve_syscall(Arch.NATIVE, name) for name in names}
    numbers = {name: number for name, number in numbers.items() if number >= 0}
    return f"""
for name, number in {numbers}.items():
    ctypes.set_errno(0)
    got = libc.syscall(number, -1, 0, 0, 0, 0, 0)
    if (got, ctypes.get_errno()) != (-1, 1):
        print("ESCAPED", name, got, ctypes.get_errno())
"""


def test_raw_system_calls_are_refused(repl: Repl) -> None:
    result = attack(repl, raw_calls(RAW.split()))
    assert (result.stdout, result.error) == ("", None)


MEMORY_WITH_CODE = """
import mmap
attempt("mmap", lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC))
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, 4096, 3, 0x22, -1, 0)
attempt("mprotect", lambda: libc.mprotect(ctypes.c_void_p(page), 4096, 7))
attempt("callback", lambda: ctypes.CFUNCTYPE(None)(print))
attempt("shared file", lambda: mmap.mmap(3, 4096))
attempt("system", lambda: -1 if libc.system(b"true") else 0)
"""


def test_memory_cannot_become_code(repl: Repl) -> None:
    result = attack(repl, MEMORY_WITH_CODE)
    assert "ESCAPED" not in result.stdout


@pytest.mark.parametrize(
    "code",
    [
        "ctypes.string_at(0)",
        "os.abort()",
        "libc.syscall(0x40000000 | 39)",  # the x32 table
        "ctypes.memset(id(type), 0, 400); type(1)(2)",
        "sys.setrecursionlimit(10**9)\ndef f(x): return repr(x)\nclass A:\n"
        "    def __repr__(self): return repr([self])\nprint(A())",
    ],
    ids=["null", "abort", "x32", "smash", "stack"],
)
def test_a_crash_is_the_cells_own(repl: Repl, code: str) -> None:
    result = attack(repl, code)
    if "0x40000000" in code and os.uname().machine != "x86_64":
        assert "ESCAPED" not in result.stdout
    else:
        assert (result.error, result.variables_lost) == ("killed", True)


CPU = {
    "loop": "while True: pass",
    "swallows BaseException": (
        "def f(): sum(i for i in range(10**9))\n"
        "while True:\n    try: f()\n    except BaseException: pass"
    ),
    "sum of a count": "import itertools; sum(itertools.count())",
    "deque of a repeat": (
        "import collections, itertools; collections.deque(itertools.repeat(0), 0)"
    ),
    "power": "10 ** 10 ** 8",
    "digits": "sys.set_int_max_str_digits(0); str(7 ** 3_000_000)",
    "regular expression": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "signal ignored": (
        "try: signal.signal(signal.SIGALRM, signal.SIG_IGN)\nexcept OSError: pass\nwhile 1: pass"
    ),
    "signals blocked": (
        "try: signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nexcept OSError: pass\n"
        "while 1: pass"
    ),
    "in a destructor": (
        "class A:\n    def __del__(self):\n        while True: pass\na = A()\ndel a"
    ),
    "in an exception's text": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
    ),
    "in a repr": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
    "in a final": "class A:\n    def __str__(self):\n        while True: pass\nFINAL(A())",
}


@pytest.mark.parametrize("code", CPU.values(), ids=CPU)
def test_endless_work_ends(repl: Repl, code: str) -> None:
    result = attack(repl, code)
    assert result.error in ("cpu", "memory")
    assert result.cpu_s < LIMITS.cell_cpu_s + 1.0


def test_a_deadlock_does_not_wait(repl: Repl) -> None:
    started = time.monotonic()
    attack(repl, "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()")
    attack(repl, "import queue\nqueue.Queue().get()")
    assert time.monotonic() - started < 10


def test_waiting_on_the_channel_is_the_cells_fault() -> None:
    """Else a cell could void its episode whenever it fears a low reward."""
    host = SandboxHost(LIMITS.model_copy(update={"cell_wall_s": 0.5}), SandboxSettings())
    result = done(host.open("").run("import os\nos.read(3, 1)"))
    assert (result.error, result.variables_lost) == ("killed", True)
    host.close()


MEMORY = {
    "one text": "x = 'a' * 10**9",
    "growth": "x = []\nwhile True: x.append('a' * 10**6 + str(len(x)))",
    "swallowed": (
        "x = []\nwhile True:\n    try: x.append(bytearray(10**6))\n    except MemoryError: pass"
    ),
    "bytearray": "bytearray(10**12)",
    "repr": "x = ['a' * 10**6]\nfor _ in range(10): x = [x, x]\nprint(repr(x))",
    "output": "print('a' * 200_000_000)",
    "tiny objects": "x = []\nwhile True: x.append([])",
}


@pytest.mark.parametrize("code", MEMORY.values(), ids=MEMORY)
def test_memory_ends(repl: Repl, code: str) -> None:
    result = attack(repl, code)
    assert result.error in ("memory", "cpu")
    assert done(repl.run("1 + 1")).stdout == "2\n"


def test_memory_held_across_cells_is_counted(repl: Repl) -> None:
    errors = [done(repl.run(f"x{i} = bytearray(10_000_000)")).error for i in range(10)]
    assert "memory" in errors


@pytest.mark.parametrize(
    "code",
    [
        "while True: print('x' * 10**6)",
        "while True: print()",
        "import sys\nwhile True: sys.stdout.write('')",
        "while True: sys.stderr.write('x')",
    ],
)
def test_a_flood_of_output_is_cut(repl: Repl, code: str) -> None:
    result = attack(repl, code)
    assert result.error == "cpu"
    assert len(result.stdout) <= LIMITS.observation_chars


@pytest.mark.parametrize("fd", [0, 1, 2, 4, 5, 100])
def test_no_other_descriptor_can_be_written(repl: Repl, fd: int) -> None:
    assert "PermissionError" in attack(repl, f"os.write({fd}, b'x')").traceback


@pytest.mark.parametrize(
    ("code", "error", "lost"),
    [
        ("os._exit(0)", "exit", True),
        ("libc.exit(5)", "exit", True),
        ("sys.exit(0)", "exit", False),
        ("raise SystemExit", "exit", False),
        ("raise KeyboardInterrupt", "exception", False),
        ("raise BaseException", "exception", False),
        ("raise GeneratorExit", "exception", False),
        ("os.closerange(0, 1000)", None, False),
    ],
)
def test_an_exit_ends_only_itself(repl: Repl, code: str, error: str, lost: bool) -> None:
    result = attack(repl, code)
    assert (result.error, result.variables_lost) == (error, lost)


TAMPERING = {
    "names": "FINAL = search = context = llm_query = print",
    "deleted": "del search, FINAL, context",
    "builtins": "import builtins\nbuiltins.print = builtins.len = builtins.__import__ = None",
    "builtins cleared": "import builtins\nbuiltins.__dict__.clear()",
    "own builtins": "__builtins__ = {}",
    "modules": "sys.modules.clear()",
    "output": "sys.stdout = sys.stderr = None",
    "trace": "sys.settrace(lambda *a: 1 / 0)",
    "profile": "sys.setprofile(lambda *a: 1 / 0)",
    "recursion": "sys.setrecursionlimit(50)",
    "display": "sys.displayhook = None",
    "audit": "sys.addaudithook(lambda *a: 1 / 0)",
    "excepthook": "sys.excepthook = sys.unraisablehook = None",
    "collector": "import gc\ngc.disable()\ngc.set_threshold(1)",
    "methods": "type(search.__self__).search = None",
    "limits": "import ctypes\nlibc.setuid(0), libc.setrlimit(9, None)",
    "namespace": "globals().clear()",
    "json": "import json\njson.dumps = None",
}


@pytest.mark.parametrize("code", TAMPERING.values(), ids=TAMPERING)
def test_tampering_does_not_outlive_its_cell(repl: Repl, code: str) -> None:
    """At worst the process is replaced; the next cell finds a whole REPL either way."""
    attack(repl, code)
    repl.run("1")
    result = done(repl.run("print(len(context), 'ok')\nFINAL(1)"))
    if result.error is not None:  # the worker itself was broken: one more cell replaces it
        result = done(repl.run("print(len(context), 'ok')\nFINAL(1)"))
    assert (result.stdout, result.final) == ("1 ok\n", 1)


@pytest.mark.parametrize(
    "code",
    [
        "os.write(3, b'garbage' * 100)",
        "os.write(3, b'\\0' * 8)",
        "os.write(3, b'\\xff' * 8)",
        "os.write(3, (2**31 - 1).to_bytes(4, 'big'))",
        "os.write(3, b'\\0\\0')\nos._exit(0)",
        "os.write(3, b'\\0\\0\\1\\0' + b'x' * 100)\nos._exit(0)",
        "forge({'t': 'call', 'n': NUMBER, 'v': 5, 'b': []})",
        "forge({'t': 'call', 'n': NUMBER + 1, 'v': None, 'b': []})",
        "forge({'t': 'done', 'n': NUMBER + 7, 'v': None, 'b': []})",
        "forge({'t': 'done', 'n': NUMBER, 'v': {'d': []}, 'b': []})",
        "forge({'t': 'ready', 'n': NUMBER, 'v': [], 'b': []})",
        "forge({'t': 'final', 'n': NUMBER, 'v': {'s': 9}, 'b': []})",
        "forge({'t': 'final', 'n': NUMBER, 'v': {'s': 0}, 'b': [-1]})",
        "forge({'t': 'final', 'n': NUMBER, 'v': {'s': 0}, 'b': [10**9]})",
        "forge({'t': 'final', 'n': NUMBER, 'v': 1, 'b': [], 'x': 1e999})",
        "forge('[' * 100_000)",
        "forge([])",
        "forge({'t': 'final', 'n': True, 'v': 1, 'b': []})",
    ],
)
def test_forged_frames_kill_their_own_worker(repl: Repl, code: str) -> None:
    result = attack(repl, FORGE + code + "\nwhile True: pass")
    assert result.error in ("killed", "exit")
    assert result.variables_lost
    assert result.final is UNSET


FORGE = """
import json, struct
NUMBER = FINAL.__self__._finish.__self__._number
def forge(header):
    data = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    os.write(3, struct.pack("!II", 4 + len(data), len(data)) + data)
"""


def test_a_forged_done_only_loses_the_cells_own_process(repl: Repl) -> None:
    report = {"stdout": "", "cut": 0, "error": None, "traceback": "", "new": [], "full": False}
    code = f"""
frame = sys.modules[type(FINAL.__self__).__module__.rpartition('.')[0] + '.channel'].frame
os.write(3, frame("done", NUMBER, {report}))
while True: pass
"""
    first = attack(repl, FORGE + code)
    assert first.error is None
    second = done(repl.run("print('honest')"))
    assert second.error in ("cpu", "killed")
    assert done(repl.run("print('honest')")).stdout == "honest\n"


def test_a_forged_call_is_a_call(repl: Repl) -> None:
    """It could have made it anyway; the host counts and answers it like any other."""
    code = """
frame = sys.modules[type(FINAL.__self__).__module__.rpartition('.')[0] + '.channel'].frame
os.write(3, frame("call", NUMBER, {"fn": "llm_query", "prompts": ["x"], "contexts": None}))
while True: pass
"""
    repl.run(PREAMBLE)
    event = repl.run(FORGE + code)
    assert event == SubCall("llm_query", ["x"], None)
    assert done(repl.resume("y" * 5_000_000)).error in ("cpu", "killed")


def test_a_flood_of_finals_is_cut_short(repl: Repl) -> None:
    code = "while True:\n    try: FINAL('x' * 4_000_000)\n    except BaseException: pass"
    result = attack(repl, code)
    assert (result.error, len(result.final)) == ("killed", 4_000_000)


def test_five_thousand_calls(repl: Repl) -> None:
    event = repl.run("for i in range(5000):\n    assert llm_query(str(i)) == str(i)\nprint('all')")
    while isinstance(event, SubCall):
        event = repl.resume(event.prompts[0])
    # Each call costs the cell CPU time: the limit may end it, nothing else may.
    assert event.error in (None, "cpu"), event.traceback


def test_negative_control_without_the_filter_attacks_get_through() -> None:
    host = UnfilteredHost(LIMITS, SandboxSettings())
    assert "seccomp" not in host.enforced
    escapes = 0
    for code in (raw_calls(["getppid", "prctl", "rt_sigprocmask", "dup"]), MEMORY_WITH_CODE):
        escapes += "ESCAPED" in attack(host.open(""), code).stdout
    host.close()
    assert escapes == 2


def test_settings_cannot_switch_the_filter_off() -> None:
    for settings in (SandboxSettings, LimitSettings):
        assert not any("seccomp" in name or "unsafe" in name for name in settings.model_fields)
    with pytest.raises(ValueError, match="Extra inputs"):
        SandboxSettings.model_validate({"seccomp": False})
