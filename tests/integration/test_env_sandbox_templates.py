"""REPLs that share a context: forked from one template, but isolated from each other."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.sandbox_events import below, is_gone, out, parent_of, pid_of, wait_for

from env.errors import SandboxError
from env.server.sandbox import SandboxHost
from env.server.sandbox.usage import private
from env.settings import EnvSettings, LimitSettings, SandboxSettings

LIMITS = LimitSettings(cell_cpu_s=1.0, cell_wall_s=30)
LARGE = {f"p{n}": f"Kalvot scores {n} on Mirbex. " + "x" * 20_000 for n in range(10)}


@pytest.fixture(scope="module")
def shared() -> Iterator[SandboxHost]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("env.server.sandbox.host.TEMPLATES", 2)
        shared = SandboxHost(EnvSettings(limits=LIMITS, sandbox=SandboxSettings(templates_mb=1)))
    yield shared
    shared.close()


@pytest.fixture
def box(shared: SandboxHost) -> Iterator[SandboxHost]:
    """The shared host without REPLs and templates."""
    yield shared
    for repl in list(shared._repls):
        repl.close()
    shared._templates.close()


# --- parents of workers


def test_repls_of_one_name_are_forks_of_one_template(box: SandboxHost) -> None:
    repls = [box.open(LARGE, "a") for _ in range(3)]
    template = parent_of(pid_of(repls[0]))
    assert [parent_of(pid_of(repl)) for repl in repls] == [template] * 3
    assert parent_of(template) == box._zygote.pid
    assert parent_of(pid_of(box.open(LARGE, "b"))) not in (template, box._zygote.pid)
    assert [out(repl.run("len(context['p7'])")) for repl in repls] == ["20027\n"] * 3


def test_no_rollout_sees_what_another_did_to_the_context(box: SandboxHost) -> None:
    first, second = box.open(LARGE, "a"), box.open(LARGE, "a")
    out(first.run("context['p0'] = 'gone'; context.pop('p1'); left = 1; import json; json.x = 1"))
    look = "import json\n(len(context), context['p0'][:6], 'left' in globals(), hasattr(json, 'x'))"
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


def test_a_worker_holds_its_channel_and_nothing_else(box: SandboxHost) -> None:
    if os.geteuid() != 0:
        pytest.skip("a worker's descriptors can be listed by root only")
    alone, worker = pid_of(box.open(LARGE)), pid_of(box.open(LARGE, "a"))
    for pid in (alone, worker, parent_of(worker)):
        held = {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert held.pop("3").startswith("socket:")
        assert held == dict.fromkeys("012", "/dev/null")
    lines = Path(f"/proc/{worker}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")


@pytest.mark.parametrize(
    "code", ["import os; os._exit(3)", "import os; os.write(3, b'x' * 99)", "x = 'a' * 10**9"]
)
def test_a_worker_that_breaks_is_replaced_from_the_template(box: SandboxHost, code: str) -> None:
    repl = box.open(LARGE, "a")
    template = parent_of(pid_of(repl))
    repl.run("context.clear()")
    done = repl.run(code)
    assert done.error is not None
    assert parent_of(pid_of(repl)) == template
    assert out(repl.run("len(context)")) == ("10\n" if done.variables_lost else "0\n")


# --- costs


def test_rollouts_share_the_memory_of_the_context(box: SandboxHost) -> None:
    context = {"p": "x" * 1_000_000}
    shared, alone, small = box.open(context, "a"), box.open(context), box.open("")
    for repl in (shared, alone, small):
        out(repl.run("len(context)"))
    held = [(private(pid_of(repl)) or 0) >> 10 for repl in (shared, alone, small)]
    assert held[0] < held[2] + 300
    assert held[1] > held[2] + 900


# --- number of templates


def test_the_template_unused_for_longest_makes_room(box: SandboxHost) -> None:
    pids = {}
    for name in "ab":
        repl = box.open(LARGE, name)
        pids[name] = parent_of(pid_of(repl))
        repl.close()
    box.open(LARGE, "a").close()
    third = parent_of(pid_of(box.open(LARGE, "c")))
    assert is_gone(pids["b"])  # reaped
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
    assert is_gone(template)  # reaped


def test_a_template_that_is_just_dying_costs_a_new_episode_nothing(box: SandboxHost) -> None:
    template = parent_of(pid_of(box.open(LARGE, "a")))
    for _ in range(5):
        os.kill(template, signal.SIGKILL)  # nobody waits for its end
        repl = box.open(LARGE, "a")
        assert out(repl.run("len(context)")) == "10\n"
        template = parent_of(pid_of(repl))


def test_a_killed_zygote_takes_its_templates_and_the_next_one_has_new_ones(box):
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
    with pytest.raises(SandboxError):
        repl.run("1")
