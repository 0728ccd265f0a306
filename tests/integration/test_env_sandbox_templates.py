"""REPLs that share a context: forked from one template, but isolated from each other."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.sandbox_events import pid_of, wait_for

from env.errors import SandboxError
from env.models import FrameTurn, RLMAction
from env.server.environment import RLMEnvironment
from env.server.sandbox import CellDone, Repl, SandboxHost, SubCall
from env.server.service import ServerSettings
from env.server.tree import Tree
from env.settings import EnvSettings, LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=1.0, cell_wall_s=30)
LARGE = {f"p{n}": f"Kalvot scores {n} on Mirbex. " + "x" * 20_000 for n in range(10)}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shared() -> Iterator[SandboxHost]:
    shared = SandboxHost(LIMITS, SandboxSettings(templates=2, templates_mb=1))
    yield shared
    shared.close()


@pytest.fixture
def box(shared: SandboxHost) -> Iterator[SandboxHost]:
    """The shared host without REPLs and templates."""
    yield shared
    for repl in list(shared._repls):
        repl.close()
    shared._templates.close()


def out(event: CellDone | SubCall) -> str:
    assert isinstance(event, CellDone), event
    assert event.error is None, event
    return event.stdout


def stat_of(pid: int) -> list[str]:
    """State, parent and the other fields of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def is_gone(pid: int) -> bool:
    return not stat_of(pid) or stat_of(pid)[0] == "Z"


def below(pid: int) -> set[int]:
    """Process ids of all descendants."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {child: int(fields[1]) for child in pids if (fields := stat_of(child))}
    found: set[int] = set()
    while new := {c for c, p in parents.items() if p in found | {pid}} - found:
        found |= new
    return found


def cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


# --- parents of workers


def test_repls_of_one_name_are_forks_of_one_template(box: SandboxHost) -> None:
    repls = [box.open(LARGE, "a") for _ in range(3)]
    template = parent_of(pid_of(repls[0]))
    assert [parent_of(pid_of(repl)) for repl in repls] == [template] * 3
    assert parent_of(template) == box._zygote.pid
    assert parent_of(pid_of(box.open(LARGE, "b"))) not in (template, box._zygote.pid)
    assert [out(repl.run("len(context['p7'])")) for repl in repls] == ["20027\n"] * 3


def test_without_a_name_or_with_a_small_context_there_is_no_template(box: SandboxHost) -> None:
    for repl in (box.open(LARGE), box.open({"p": "small"}, "a"), box.open("", "b")):
        assert parent_of(pid_of(repl)) == box._zygote.pid


def test_no_rollout_sees_what_another_did_to_the_context(box: SandboxHost) -> None:
    first, second = box.open(LARGE, "a"), box.open(LARGE, "a")
    out(first.run("context['p0'] = 'gone'; context.pop('p1'); left = 1; import json; json.x = 1"))
    look = (
        "(len(context), context['p0'][:6], 'left' in globals(), hasattr(__import__('json'), 'x'))"
    )
    for repl in (second, box.open(LARGE, "a")):
        assert out(repl.run(look)) == "(10, 'Kalvot', False, False)\n"
    assert out(first.run(look)) == "(9, 'gone', True, True)\n"


PROBE = """
import random, sys
def depth(n=0):
    try:
        return depth(n + 1)
    except RecursionError:
        return n
print(list(set(" ".join(context.values()).split()))[:9], random.random(), depth())
print(sys.getrecursionlimit(), list(context), search(context, "kalvot")["p3"], SHOW_VARS())
"""


def test_a_template_changes_no_output(box: SandboxHost) -> None:
    shared, alone = box.open(LARGE, "a"), box.open(LARGE)
    assert shared.enforced == alone.enforced == box.enforced
    assert out(shared.run(PROBE)) == out(alone.run(PROBE))


def test_a_worker_of_a_template_holds_its_channel_and_nothing_else(box: SandboxHost) -> None:
    if os.geteuid() != 0:
        pytest.skip("a worker's descriptors can be listed by root only")
    worker = pid_of(box.open(LARGE, "a"))
    for pid in (worker, parent_of(worker)):
        held = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert held.pop("3").startswith("socket:")
        assert held == dict.fromkeys("012", "/dev/null")
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{worker}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")


@pytest.mark.parametrize(
    "code", ["import os; os._exit(3)", "import os; os.write(3, b'x' * 99)", "x = 'a' * 10**9"]
)
def test_a_worker_that_breaks_is_replaced_from_the_template(box: SandboxHost, code: str) -> None:
    repl = box.open(LARGE, "a")
    template = parent_of(pid_of(repl))
    repl.run("context.clear()")
    done = repl.run(code)
    assert isinstance(done, CellDone)
    assert done.error is not None
    assert parent_of(pid_of(repl)) == template
    assert out(repl.run("len(context)")) == ("10\n" if done.variables_lost else "0\n")


# --- costs


def test_the_price_of_a_fork_does_not_grow_with_the_context() -> None:
    box = SandboxHost(LIMITS, SandboxSettings())
    huge = {"p": "x" * 10_000_000}

    def cost(context: dict[str, str], name: str | None) -> float:
        """CPU seconds of one open, in the process that forks and in the worker: the median."""
        first = box.open(context, name)
        forker = parent_of(pid_of(first))
        first.close()
        costs = []
        for _ in range(11):
            before = cpu_s(forker)
            repl = box.open(context, name)
            costs.append(cpu_s(forker) - before + cpu_s(pid_of(repl)))
            repl.close()
        return statistics.median(costs)

    shared, alone, small = cost(huge, "huge"), cost(huge, None), cost({"p": "x"}, None)
    box.close()
    assert shared < 0.5 * alone
    assert shared < 2 * small


def test_rollouts_share_the_memory_of_the_context(box: SandboxHost) -> None:
    def private_kb(repl: Repl) -> int:
        lines = Path(f"/proc/{pid_of(repl)}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

    context = {"p": "x" * 1_000_000}
    shared, alone, small = box.open(context, "a"), box.open(context), box.open("")
    for repl in (shared, alone, small):
        out(repl.run("len(context)"))
    assert private_kb(shared) < private_kb(small) + 300
    assert private_kb(alone) > private_kb(small) + 900


# --- number of templates


def test_the_template_unused_for_longest_makes_room(box: SandboxHost) -> None:
    pids = {}
    for name in "ab":
        repl = box.open(LARGE, name)
        pids[name] = parent_of(pid_of(repl))
        repl.close()
    box.open(LARGE, "a").close()
    third = parent_of(pid_of(box.open(LARGE, "c")))
    assert not stat_of(pids["b"])  # reaped
    assert parent_of(pid_of(box.open(LARGE, "a"))) == pids["a"]
    assert len({third, *pids.values()}) == 3


def test_a_template_in_use_is_never_ended(box: SandboxHost) -> None:
    held = [box.open(LARGE, "a"), box.open(LARGE, "b")]
    out(held[0].run("kept = 1"))
    third = box.open(LARGE, "c")
    assert parent_of(pid_of(third)) == box._zygote.pid
    assert out(third.run("len(context)")) == "10\n"
    assert out(held[0].run("kept")) == "1\n"
    held[1].close()
    assert parent_of(pid_of(box.open(LARGE, "c"))) != box._zygote.pid


def test_contexts_held_are_bounded_in_bytes(box: SandboxHost) -> None:
    whole = {"p": "x" * 700_000}
    first = box.open(whole, "a")
    assert parent_of(pid_of(first)) != box._zygote.pid
    assert parent_of(pid_of(box.open(whole, "b"))) == box._zygote.pid
    assert parent_of(pid_of(box.open({"p": "x" * 1_100_000}, "c"))) == box._zygote.pid
    first.close()
    assert parent_of(pid_of(box.open(whole, "b"))) != box._zygote.pid


def test_no_templates_when_the_settings_say_so() -> None:
    box = SandboxHost(LIMITS, SandboxSettings(templates=0))
    assert parent_of(pid_of(box.open(LARGE, "a"))) == box._zygote.pid
    box.close()


def test_threads_that_compete_for_two_templates_all_play(box: SandboxHost) -> None:
    def play(number: int) -> str:
        name = f"n{number % 5}"
        repl = box.open({**LARGE, "name": name}, name)
        found = out(repl.run("context['name']"))
        repl.close()
        return found

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(play, range(30))) == [f"'n{n % 5}'\n" for n in range(30)]
    assert len(box._templates._held) <= 2


# --- ends


def test_a_killed_template_is_replaced_and_its_repls_are_lost(box: SandboxHost) -> None:
    idle, asking, stranger = box.open(LARGE, "a"), box.open(LARGE, "a"), box.open(LARGE, "b")
    asking.run("llm_query('a')")
    template = parent_of(pid_of(idle))
    pids = [pid_of(idle), pid_of(asking)]
    os.kill(template, signal.SIGKILL)
    assert wait_for(lambda: is_gone(template))
    with pytest.raises(SandboxError, match="template died"):
        idle.run("1")
    with pytest.raises(SandboxError):
        asking.resume("b")
    assert wait_for(lambda: all(map(is_gone, pids)))
    assert out(stranger.run("1 + 1")) == "2\n"
    again = box.open(LARGE, "a")
    assert parent_of(pid_of(again)) not in (template, box._zygote.pid)
    assert out(again.run("len(context)")) == "10\n"
    assert not stat_of(template)  # reaped


def test_a_template_killed_in_the_middle_of_a_cell(box: SandboxHost) -> None:
    repl = box.open(LARGE, "a")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(repl.run, "while True: pass")
        time.sleep(0.2)
        os.kill(parent_of(pid_of(repl)), signal.SIGKILL)
        with pytest.raises(SandboxError):
            running.result(timeout=10)


def test_a_template_that_is_just_dying_costs_a_new_episode_nothing(box: SandboxHost) -> None:
    template = parent_of(pid_of(box.open(LARGE, "a")))
    for _ in range(5):
        os.kill(template, signal.SIGKILL)  # nobody waits for its end
        repl = box.open(LARGE, "a")
        assert out(repl.run("len(context)")) == "10\n"
        template = parent_of(pid_of(repl))


def test_a_killed_zygote_takes_its_templates_and_the_next_one_has_new_ones(
    box: SandboxHost,
) -> None:
    repl = box.open(LARGE, "a")
    family = below(box._zygote.pid)
    assert len(family) == 2
    os.kill(box._zygote.pid, signal.SIGKILL)
    assert wait_for(lambda: not box._zygote.alive)
    assert wait_for(lambda: all(map(is_gone, family)))
    with pytest.raises(SandboxError):
        repl.run("1")
    again = box.open(LARGE, "a")
    assert parent_of(parent_of(pid_of(again))) == box._zygote.pid
    assert out(again.run("len(context)")) == "10\n"


def test_nothing_is_left_of_templates_and_their_crashes() -> None:
    before = below(os.getpid()), len(os.listdir("/proc/self/fd"))
    box = SandboxHost(LIMITS, SandboxSettings(templates=2))
    for turn in range(24):
        repl = box.open(LARGE, f"n{turn % 3}")
        repl.run(["1", "import os; os._exit(3)", "import os; os.write(3, b'x' * 99)"][turn % 3])
        if turn % 4:
            repl.close()
    assert len(below(os.getpid()) - before[0]) <= 1 + 2 + 6
    box.close()
    assert (below(os.getpid()), len(os.listdir("/proc/self/fd"))) == before


def test_no_template_outlives_a_killed_server() -> None:
    code = """
from env.server.sandbox import SandboxHost
from env.settings import LimitSettings, SandboxSettings
host = SandboxHost(LimitSettings(cell_cpu_s=100, cell_wall_s=100), SandboxSettings())
large = {"p": "x" * 200_000}
idle, busy = host.open(large, "a"), host.open(large, "a")
print(host._zygote.pid, idle._worker.pid, busy._worker.pid, flush=True)
busy.run("while True: pass")
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        zygote = int(server.stdout.readline().split()[0])
        family = below(zygote)
        assert len(family) == 3
        server.kill()
    assert wait_for(lambda: all(map(is_gone, {zygote, *family})))


# --- episodes that share


class Opened:
    """A sandbox host that records its calls."""

    def __init__(self, host: SandboxHost) -> None:
        self.calls: list[tuple[Any, str | None]] = []
        self._host = host

    def open(self, context: Any, shared_as: str | None = None, **more: Any) -> Repl:
        self.calls.append((context, shared_as))
        return self._host.open(context, shared_as)


def test_the_root_of_a_served_problem_shares_and_its_children_do_not(box: SandboxHost) -> None:
    opened = Opened(box)
    tree = Tree(EnvSettings(), opened, "What?", {"p": "text"}, shared_as="problem-1")
    tree.play([FrameTurn(frame=0, text="```repl\nrlm_query('x', 'part')\n```")])
    tree.play([FrameTurn(frame=1, text="```repl\nFINAL(1)\n```")])
    tree.close()
    assert opened.calls == [({"p": "text"}, "problem-1"), ("part", None)]


def test_served_problems_share_by_their_id_and_own_documents_do_not(
    box: SandboxHost, server_problems: Any
) -> None:
    class Service:
        settings = ServerSettings(env=EnvSettings(allow_documents=True))
        problems = server_problems
        host = Opened(box)

        def problems_for(self, owner_key: str | None) -> Any:
            return self.problems

    service = Service()
    environment = RLMEnvironment(lambda: service)  # type: ignore[arg-type,return-value]
    problem = server_problems.get(server_problems.ids("test", "easy")[0])
    for start in ({"problem_id": problem.problem_id}, {"question": "?", "papers": {"a": "b"}}):
        assert environment.reset(**start).refused is None
        environment.step(RLMAction(text="```repl\nFINAL([])\n```"))
    environment.close()
    papers = {paper.paper_id: paper.text for paper in problem.papers}
    assert service.host.calls == [(papers, problem.problem_id), ({"a": "b"}, None)]
