"""The setting `env.deterministic`: results of a cell do not depend on its speed."""

from collections.abc import Iterator

import pytest

from env.models import CALLED, CROWDED, NEAR, FrameTurn
from env.server.deterministic import repeatable_cell
from env.server.sandbox import CellDone, SandboxHost
from env.server.tree import Tree
from env.settings import EnvSettings, LimitSettings, SandboxSettings


def test_a_cell_that_ends_near_its_limit_makes_the_episode_void():
    assert repeatable_cell(CellDone(stdout="7", cpu_s=1.5), 2.0, called=False) == NEAR
    evicted = CellDone(stdout="", error="evicted", variables_lost=True)
    assert repeatable_cell(evicted, 2.0, called=False) == CROWDED
    starved = CellDone(stdout="", error="starved", cpu_s=1.5)
    assert not isinstance(repeatable_cell(starved, 2.0, called=False), str)  # the tree voids it


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    opened = SandboxHost(LimitSettings(cell_cpu_s=0.3), SandboxSettings())
    yield opened
    opened.close()


def played(host: SandboxHost, *cells: str, episode_s: float = 60.0) -> tuple[Tree, list[str]]:
    """A tree after the cells of the root, and the observation of each."""
    limits = LimitSettings(cell_cpu_s=0.3, episode_s=episode_s, max_turns=8)
    tree = Tree(EnvSettings(limits=limits, deterministic=True), host, "Which?", {"p1": "One."})
    said = []
    tree.views()
    for code in cells:
        tree.play([FrameTurn(frame=0, text=f"```repl\n{code}\n```")])
        said += [view.messages[-1].content for view in tree.views() if view.messages]
    return tree, said


def test_an_endless_loop_reads_the_same_words_each_time_and_loses_its_variables(host):
    loop = "i = 0\nwhile True:\n    i += 1\n    print(i)"
    tree, said = played(host, "x = 1", loop, "print('i' in globals(), 'x' in globals())")
    again, same = played(host, "x = 1", loop, "print('i' in globals(), 'x' in globals())")
    assert said == same
    assert said[1].startswith("error: stopped after 0.3 s of CPU time")
    assert said[2].startswith("False False")
    assert tree.void is None
    assert tree.counters.timeouts == 1
    tree.close()
    again.close()


def test_the_episodes_time_is_counted_in_stopped_cells(host):
    tree, _ = played(host, *["while True: pass"] * 2, episode_s=0.5)
    assert tree.done
    assert tree.void is None
    assert [state.stop_reason for state in tree.states()] == ["timeout"]
    tree.close()
    tree, _ = played(host, *["while True: pass"] * 2, episode_s=0.7)
    assert not tree.done
    tree.close()


def test_a_cell_stopped_after_a_sub_call_makes_the_episode_void(host):
    tree, _ = played(host, "rlm_query('?', context['p1'])\nwhile True: pass")
    tree.play([FrameTurn(frame=1, text="```repl\nFINAL(1)\n```")])
    assert tree.void == CALLED
    # The frame of the cell is trained if the episode is charged; a frame cut from outside is not.
    assert [state.stop_reason for state in tree.states()] == ["timeout", "final"]
    tree.close()
