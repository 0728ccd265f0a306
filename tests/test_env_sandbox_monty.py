"""The backend monty: the REPL as the policy knows it, as far as that interpreter goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox_events import call, done

from env.errors import SandboxError
from env.models import FrameTurn
from env.server.sandbox import UNSET, SandboxHost, SubCall, boundary, start
from env.server.service import ServerSettings, Service
from env.server.tree import Tree
from env.settings import EnvSettings, LimitSettings, SandboxSettings

pytest.importorskip("pydantic_monty", reason="the extra `monty` is not installed")

from env.server.sandbox.monty import MontyHost, MontyRepl

PAPERS = {
    "p1": "A study of Zolpir.\nKalvot scores 31 on Mirbex.\nOn Tanfud, Kalvot gets 44.",
    "p2": "A study of Kenlus.\nDorfim scores 52 on Mirbex. It was late. Then kalvot rose.",
    "p3": "A study of Rasbon.\nNothing is said here.",
}
LIMITS = LimitSettings(cell_cpu_s=0.4, cell_wall_s=5, memory_mb=64, observation_chars=1000)
MONTY = SandboxSettings(backend="monty")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def host() -> Iterator[MontyHost]:
    host = MontyHost(LIMITS, MONTY)
    yield host
    host.close()


@pytest.fixture
def repl(host: MontyHost) -> Iterator[MontyRepl]:
    repl = host.open(PAPERS)
    yield repl
    repl.close()


def workers() -> set[int]:
    """Process ids of this process's monty children."""
    found = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "monty"], capture_output=True, text=True, check=False
    )
    return set(map(int, found.stdout.split()))


# --- which backend


def test_the_settings_choose_the_backend_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monty = start(LIMITS, MONTY, 0, True)
    assert (type(monty), monty.enforced) == (MontyHost, ("monty",))
    monty.close()
    own = start(LIMITS, SandboxSettings(), 0, True)
    assert (type(own), "seccomp" in own.enforced) == (SandboxHost, True)
    own.close()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(SandboxError, match=r"env\.sandbox\.backend=monty"):
        start(LIMITS, SandboxSettings(), 0, True)


def test_without_the_package_monty_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("env.server.sandbox.monty")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(SandboxError, match="pip install pydantic-monty"):
        start(LIMITS, MONTY, 0, True)


def test_monty_works_without_seccomp(monkeypatch: pytest.MonkeyPatch, server_problems: Any) -> None:
    monkeypatch.setattr(boundary.sys, "platform", "darwin")
    settings = ServerSettings(env=EnvSettings(sandbox=MONTY))
    service = Service(settings, server_problems)
    assert service.host.enforced == ("monty",)
    service.close()


def test_preloaded_modules_are_refused() -> None:
    with pytest.raises(SandboxError, match=r"env\.sandbox\.preload"):
        MontyHost(LIMITS, SandboxSettings(backend="monty", preload=["numpy"]))


# --- cells


def test_variables_stay_and_new_ones_are_named(repl: MontyRepl) -> None:
    first = done(repl.run("import re\nx = 1\ny = [2]\n_z = 3"))
    assert (first.new_names, first.error, first.stdout) == (["x", "y"], None, "")
    assert done(repl.run("x = 5\nprint(x + y[0])\n'a' + 'b'")).stdout == "7\n'ab'\n"
    assert done(repl.run("None")).stdout == ""
    assert "'y': 'list'" in done(repl.run("print(SHOW_VARS())")).stdout


def test_a_traceback_shows_only_lines_of_the_policy(repl: MontyRepl) -> None:
    repl.run("def f(x):\n    return 1 / x")
    assert done(repl.run("a = 1\nf(0)")).traceback == (
        "line 2: f(0)\ncell 1 line 2, in f: return 1 / x\nZeroDivisionError: division by zero"
    )
    inside = done(repl.run("search(context, '')")).traceback
    assert inside.startswith("line 1: search(context, '')\nValueError: search: keyword must be")


@pytest.mark.parametrize(
    ("code", "error"),
    [("a = (", "syntax"), ("1 / 0", "exception"), ("raise SystemExit", "exit"), ("q", "exception")],
)
def test_a_mistake_is_named_and_costs_nothing(repl: MontyRepl, code: str, error: str) -> None:
    repl.run("kept = 1")
    result = done(repl.run(code))
    assert (result.error, result.variables_lost) == (error, False)
    assert result.traceback
    assert done(repl.run("kept")).stdout == "1\n"


def test_output_is_cut_and_holds_no_token_of_a_chat(repl: MontyRepl) -> None:
    result = done(repl.run("print('a' * 900)\nprint('b' * 5000)"))
    assert (len(result.stdout), result.cut) == (1000, 901 + 5001 - 1000)
    assert done(repl.run("print('a<|im_end|>b</s>')")).stdout == "ab\n"
    assert "<|" not in done(repl.run("raise ValueError('<|im_start|>')")).traceback


def test_lone_surrogates_are_replaced_both_ways(host: MontyHost) -> None:
    repl = host.open({"a": "x\ud800y"})
    assert done(repl.run("FINAL(context['a'])")).final == "x?y"
    assert call(repl.run("print(llm_query('a'))")).prompts == ["a"]
    assert done(repl.resume("x\ud800")).stdout == "x?\n"
    assert done(repl.run("s = '\ud800'\ns")).error is None
    repl.close()


READING = [
    "search(context, 'Kalvot')",
    "search(context['p2'], 'late')",
    "search(context, 'DORFIM')",
    "search(context, 'Nothng')",
    "search(context, 'Kalvut')",
    "search(context, 'Mirbx')",
    "search(context, 'on mirbex')",
    "search(context, 'stdy of Zolpri')",
    "search(context['p2'], 'late', window=9)",
    "list_papers(context)",
    "get_abstract(context, 'p1')",
    "get_paper_abstract(context, 'p3')",
    "extract(context['p2'], 'DORFIM', 'mirbex')",
]


def test_reading_gives_what_the_other_backend_gives(repl: MontyRepl) -> None:
    own = SandboxHost(LIMITS, SandboxSettings())
    other = own.open(PAPERS)
    for code in READING:
        assert done(repl.run(code)).stdout == done(other.run(code)).stdout, code
    own.close()


def test_helpers_that_a_cell_replaced_are_back_in_the_next(repl: MontyRepl) -> None:
    repl.run("search = 4\ncontext = None\ntype = 3\nkept = 1\nlist_papers = []")
    assert done(repl.run("search(context, 'late')")).stdout == "{'p2': ['It was late.']}\n"
    again = done(repl.run("more = kept + 1\nmore"))
    assert (again.stdout, again.new_names) == ("2\n", ["more"])
    repl.run("_types = locals = 5")
    assert done(repl.run("list_papers(context)")).stdout == "['p1', 'p2', 'p3']\n"


# --- sub-calls and FINAL


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("llm_query('a', model='m')", SubCall("llm_query", ["a"], None)),
        ("llm_query_batched(('a', 'b'))", SubCall("llm_query_batched", ["a", "b"], None)),
        ("rlm_query('a', context={1: ('c',)})", SubCall("rlm_query", ["a"], [{"1": ["c"]}])),
        (
            "rlm_query_batched(['a'], context_list=['c'])",
            SubCall("rlm_query_batched", ["a"], ["c"]),
        ),
        ("ask = rlm_query\nask('a', 'c')", SubCall("rlm_query", ["a"], ["c"])),
    ],
)
def test_sub_calls_suspend_the_cell(repl: MontyRepl, code: str, asked: SubCall) -> None:
    assert call(repl.run(code)) == asked
    with pytest.raises(SandboxError):
        repl.run("1")
    assert done(repl.resume("v")).stdout == "'v'\n"
    with pytest.raises(SandboxError):
        repl.resume("x")


@pytest.mark.parametrize(
    "code",
    [
        "llm_query(3)",
        "rlm_query_batched('ab')",
        "rlm_query_batched(['a'], ['x', 'y'])",
        "rlm_query('a', 'x' * 5_000_000)",
        "llm_query()",
    ],
)
def test_a_wrong_sub_call_is_an_exception_and_never_leaves(repl: MontyRepl, code: str) -> None:
    assert done(repl.run(code)).error == "exception"


def test_calls_in_a_loop_in_functions_and_of_nobody(repl: MontyRepl) -> None:
    code = """
def ask(n):
    return llm_query(f"{n}") if n else "end"
FINAL([[ask(n) for n in (1, 2, 0)], rlm_query_batched([])])
"""
    assert call(repl.run(code)).prompts == ["1"]
    assert call(repl.resume("one")).prompts == ["2"]
    assert done(repl.resume("two")).final == [["one", "two", "end"], []]


def test_the_clock_stands_still_during_a_sub_call(repl: MontyRepl) -> None:
    call(repl.run("llm_query('a')\nprint('on')"))
    time.sleep(0.6)
    result = done(repl.resume("b"))
    assert (result.stdout, result.error) == ("on\n", None)
    assert result.cpu_s < 0.4


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("FINAL('a')", "a"),
        ("FINAL(None)", None),
        ("FINAL([1, 2.5, True, {'a': None}])", [1, 2.5, True, {"a": None}]),
        ("FINAL((1, {2}, range(2)))", [1, [2], "range(0, 2)"]),
        ("FINAL([float('nan')])", [None]),
        ("v = ['q']\nFINAL_VAR('v')", ["q"]),
        ("v = ['q']\nFINAL_VAR(v)", ["q"]),
        ("FINAL_VAR('not a name')", "not a name"),
        ("try:\n    FINAL(1)\nexcept Exception:\n    FINAL(2)", 1),
        ("try:\n    FINAL(1)\nexcept BaseException:\n    FINAL(2)", 1),
        ("try:\n    FINAL(1)\nexcept BaseException:\n    1 / 0", 1),
    ],
)
def test_final_gives_the_value_and_ends_the_cell(repl: MontyRepl, code: str, value: object) -> None:
    result = done(repl.run(code + "\nprint('after')"))
    assert result.final == value
    assert "after" not in result.stdout


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\nfor _ in range(500): x = [x]\nFINAL(x)",
        "FINAL(10 ** 100)",
        "FINAL('x' * 5_000_000)",
        "FINAL(['x' * 1_000_000] * 5)",
        "FINAL([1] * 300_000)",
        "FINAL_VAR('no_such_name')",
    ],
)
def test_what_cannot_be_a_final_is_an_exception(repl: MontyRepl, code: str) -> None:
    result = done(repl.run(code))
    assert (result.error, result.final) == ("exception", UNSET)


# --- limits and attacks


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "for n in range(10**12): n * n",
        "while True:\n    try:\n        nobody_knows\n    except NameError: pass",
        "while True:\n    try:\n        FINAL(1)\n    except BaseException: pass",
        "while True: print('x' * 1000)",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b') or 1\nwhile True: pass",
    ],
)
def test_endless_work_ends_and_costs_the_variables(repl: MontyRepl, code: str) -> None:
    repl.run("x = 1")
    started = time.monotonic()
    result = done(repl.run(code))
    assert result.error in ("cpu", "killed")
    assert result.variables_lost
    assert time.monotonic() - started < 4
    assert done(repl.run("x")).error == "exception"
    assert done(repl.run("len(context)")).stdout == "3\n"


@pytest.mark.parametrize(
    "code",
    [
        "big = 'x' * 10**9",
        "keep = []\nwhile True: keep.append('x' * 10**5)",
        "10 ** 10 ** 8",
    ],
)
def test_memory_ends(repl: MontyRepl, code: str) -> None:
    result = done(repl.run(code))
    assert result.error == "memory"
    assert done(repl.run("len(context)")).stdout == "3\n"


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "import os\nos.listdir('/')",
        "import os\nos.environ['PATH']",
        "import os\nos.system('true')",
        "import subprocess",
        "import socket",
        "import ctypes",
        "import time\ntime.sleep(5)",
        "().__class__.__subclasses__()",
        "search.__globals__",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "eval('__import__')('os').fork()",
    ],
)
def test_an_attack_is_an_exception(repl: MontyRepl, code: str) -> None:
    started = time.monotonic()
    assert done(repl.run(code)).error == "exception"
    assert time.monotonic() - started < 1


def test_what_crashes_monty_costs_only_its_own_repl(host: MontyHost, repl: MontyRepl) -> None:
    """A class that holds itself crashes monty 1.4.0 when its namespace is handed over."""
    crashing = "class A:\n    def __init__(self): self.x = 1\na = A()\nf = a.__init__\nlocals()"
    other = host.open("")
    result = done(other.run(crashing))
    assert result.error in (None, "killed")
    assert done(other.run("context")).stdout == "''\n"
    assert done(repl.run("len(context)")).stdout == "3\n"
    other.close()


# --- processes


def test_repls_are_strangers_and_live_at_once(host: MontyHost) -> None:
    repls = [host.open({"n": str(n)}) for n in range(12)]
    for repl in repls:
        call(repl.run("x = llm_query(context['n'])"))
    for number, repl in enumerate(repls):
        assert done(repl.resume(number)).error is None
    assert [done(repl.run("x")).stdout for repl in repls] == [f"{n}\n" for n in range(12)]
    for repl in repls:
        repl.close()


def test_many_threads_use_many_repls_at_once(host: MontyHost) -> None:
    def play(number: int) -> str:
        repl = host.open({"n": str(number)})
        event = repl.run("t = 0\nfor i in range(9): t += int(llm_query(context['n']))\nprint(t)")
        while isinstance(event, SubCall):
            event = repl.resume(event.prompts[0])
        repl.close()
        return event.stdout

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(play, range(24))) == [f"{9 * n}\n" for n in range(24)]


def test_closing_leaves_no_process() -> None:
    before = workers()
    host = MontyHost(LIMITS, MONTY)
    repls = [host.open("") for _ in range(3)]
    repls[0].run("llm_query('a')")
    repls[1].run("while True: pass")
    assert len(workers() - before) >= 3
    host.close()
    assert workers() == before
    with pytest.raises(SandboxError, match="closed"):
        host.open("")
    with pytest.raises(SandboxError):
        repls[2].run("1")


def test_a_worker_killed_from_outside_is_no_mistake_of_the_policy() -> None:
    host = MontyHost(LIMITS, MONTY)
    before = workers()
    repl = host.open("")
    (worker,) = workers() - before
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(SandboxError, match="killed from outside"):
        repl.run("1")
    assert done(host.open("").run("1")).stdout == "1\n"
    host.close()


def test_nothing_outlives_a_killed_server() -> None:
    code = """
from env.server.sandbox.monty import MontyHost
from env.settings import LimitSettings, SandboxSettings
host = MontyHost(LimitSettings(), SandboxSettings(backend="monty"))
repl = host.open("")
print(repl._session.worker_pid, flush=True)
repl.run("llm_query('a')")
input()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        worker = Path(f"/proc/{int(server.stdout.readline())}")
        assert worker.exists()
        server.kill()
    deadline = time.monotonic() + 5
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not worker.exists() or "Z (zombie)" in (worker / "status").read_text()


def test_a_tree_plays_on_it(host: MontyHost) -> None:
    tree = Tree(EnvSettings(), host, "What?", PAPERS, shared_as="p")
    tree.play([FrameTurn(frame=0, text="```repl\nFINAL([rlm_query('x', context['p3'])])\n```")])
    tree.play([FrameTurn(frame=1, text="```repl\nFINAL(search(context, 'Nothing'))\n```")])
    assert tree.answer == [["Nothing is said here."]]
