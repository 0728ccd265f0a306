"""Several servers behind HAProxy: a dead one costs its own episodes and comes back."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from agent.policies.base import TurnReply, TurnRequest
from agent.policies.scripted import Scripted, Seen
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.settings import TrainSettings
from agent.training.curriculum import Curriculum
from agent.training.groups import draw_groups
from env.client import Sessions
from tasks.config import resolve
from tasks.deployment import replicas
from tasks.deployment.checks import check_alike, healthy, metadata
from tasks.deployment.environment import environment
from tasks.deployment.local import local_server
from tasks.errors import ConfigError
from tasks.params import Params

FEW = "prepare.synthetic.collections={train: 3, validation: 1, test: 1}"
REPLICAS, SESSIONS = 3, 9


@pytest.fixture(scope="module")
def params() -> Params:
    return resolve(overrides=[FEW, f"deploy.replicas={REPLICAS}", "env.max_sessions=8"])


@pytest.fixture
def url(params: Params) -> Iterator[str]:
    with replicas.local_replicas(params, data=None) as found:
        yield found


def servers() -> list[psutil.Process]:
    """The servers that this process started."""
    children = psutil.Process().children()
    return [one for one in children if "env.server.app" in one.cmdline()]


def port_of(server: psutil.Process) -> int:
    return int(server.cmdline()[server.cmdline().index("--port") + 1])


def shares() -> dict[int, int]:
    """Sessions that HAProxy has open with each server, by its port."""
    [control] = Path(".run").glob("haproxy-*.sock")
    rows = replicas.statistics(control, replicas.SESSIONS)
    return {int(row["addr"].rpartition(":")[2]): int(row["scur"]) for row in rows}


def wait_until(fact: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


class Killer(Scripted):
    """Prints, then answers; between the two, it kills a server for the first time only."""

    def __init__(self) -> None:
        super().__init__(lambda seen: self._text(seen))
        self.rounds = 0
        self.killed: psutil.Process | None = None
        self.cost = 0

    def _text(self, seen: Seen) -> str:
        return "```repl\nprint(len(context))\n```" if seen.turn == 0 else "```repl\nFINAL([])\n```"

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        self.rounds += 1
        if self.rounds == 2:
            self.killed = servers()[1]
            self.cost = shares()[port_of(self.killed)]
            os.kill(self.killed.pid, signal.SIGKILL)
        return super().act(requests)


@pytest.mark.nightly
def test_a_killed_server_costs_its_own_episodes_and_comes_back(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tasks.deployment.replicas")
    policy = Killer()
    settings = TrainSettings(problems_per_step=3, group_size=3, resample_groups=0)
    with Sessions(url, SESSIONS) as sessions:
        assert sessions.count == SESSIONS  # more than the eight of one server
        [easy] = [
            [EpisodeSpec(observation.problem.problem_id, difficulty="easy")]
            for observation in [sessions.reset(0, seed=0).result()]
            if observation.problem
        ]
        problems = dict.fromkeys(settings.curriculum.levels, easy * 3)
        drawn = draw_groups(
            lambda specs: play(policy, sessions, specs, sessions=SESSIONS),
            *(1, Curriculum(settings.curriculum), problems, settings),
        )
        voids = [tree.void for tree in drawn.episodes if tree.void is not None]
        assert policy.cost == SESSIONS // REPLICAS
        assert len(voids) == drawn.replaced_voids == policy.cost
        assert all(void.startswith("connection: the connection") for void in voids)
        trees = [tree for group in drawn.groups for tree in group]
        assert len(trees) == SESSIONS
        assert all(tree.void is None and tree.reward is not None for tree in trees)

        wait_until(lambda: "plays again" in caplog.text)
        assert "ended with code -9, and its episodes are void" in caplog.text
        assert len(servers()) == REPLICAS
        for slot in range(SESSIONS):
            sessions.reset(slot, seed=slot).result()
        wait_until(lambda: [*shares().values()] == [SESSIONS // REPLICAS] * REPLICAS)
    assert healthy(url, timeout_s=5.0)


@pytest.mark.nightly
def test_a_server_that_comes_back_with_other_problems_gets_no_session(
    params: Params,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, "tasks.deployment.replicas")
    start = replicas.LocalServer
    with replicas.local_replicas(params, data=None) as url:
        other = params.prepare.model_copy(
            update={"synthetic": params.prepare.synthetic.model_copy(update={"seed": 99})}
        )
        monkeypatch.setattr(
            replicas,
            "LocalServer",
            lambda settings, data: start(settings.model_copy(update={"prepare": other}), data),
        )
        os.kill(servers()[0].pid, signal.SIGKILL)
        wait_until(lambda: "env-1 stays down" in caplog.text)
        assert "differs from the other servers: problems_hash is" in caplog.text
        assert len(servers()) == REPLICAS - 1
        with Sessions(url, 4) as sessions:
            for slot in range(4):
                sessions.reset(slot, seed=slot).result()
            wait_until(lambda: sorted(shares().values()) == [0, 2, 2])


@pytest.mark.nightly
def test_a_server_that_hangs_is_ended_and_started_again(
    params: Params,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, "tasks.deployment.replicas")
    sooner = tmp_path / "haproxy.cfg"
    sooner.write_text(replicas.CONFIG.read_text().replace("timeout check 20s", "timeout check 2s"))
    monkeypatch.setattr(replicas, "CONFIG", sooner)
    with replicas.local_replicas(params, data=None) as url:
        hung = servers()[1]
        hung.suspend()
        wait_until(lambda: "plays again" in caplog.text)
        assert f":{port_of(servers()[-1])} does not answer" in caplog.text
        assert not hung.is_running()
        assert len(servers()) == REPLICAS
        assert healthy(url, timeout_s=5.0)


@pytest.mark.nightly
def test_a_dead_proxy_is_started_again_and_all_ends_with_the_block(
    params: Params, caplog: pytest.LogCaptureFixture
) -> None:
    others = psutil.Process().children(recursive=True)
    with replicas.local_replicas(params, data=None) as url:
        [proxy] = [p for p in psutil.Process().children(recursive=True) if p.name() == "haproxy"]
        proxy.kill()
        wait_until(lambda: "the proxy at" in caplog.text and healthy(url, timeout_s=1.0))
        assert metadata(url)["max_sessions"] == 8
        everything = set(psutil.Process().children(recursive=True)) - set(others)
        assert len(everything) > REPLICAS
    wait_until(lambda: not any(one.is_running() for one in everything))


def test_two_servers_with_other_rules_or_problems_are_told_apart(server_url: str) -> None:
    about = metadata(server_url)
    check_alike(about, "http://b", about)
    with local_server(resolve(overrides=[FEW, "env.limits.max_turns=5"]), data=None) as other:
        there = metadata(other)
    with pytest.raises(
        ConfigError,
        match=r"b differs .*max_turns is 5 there, not 8, .*problems_hash is '\w+' there, not '\w+'",
    ):
        check_alike(about, "http://b", there)


def test_without_haproxy_the_install_line_is_said_before_anything_starts(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    before = len(psutil.Process().children(recursive=True))
    with (
        pytest.raises(ConfigError, match=r"replicas needs HAProxy.*apt-get install haproxy"),
        environment(params),
    ):
        pass
    assert len(psutil.Process().children(recursive=True)) == before


def test_more_servers_than_the_memory_allows_are_refused() -> None:
    params = resolve(overrides=["deploy.replicas=8", "env.memory_mb=2048"])
    with pytest.raises(
        ConfigError, match=r"leaves 256 of 2048 MB .*Set deploy\.replicas=4 or less"
    ):
        replicas.shared_memory(params)
    few = params.deploy.model_copy(update={"replicas": 4})
    shared = replicas.shared_memory(params.model_copy(update={"deploy": few}))
    assert shared.env.memory_mb == 512


def test_replicas_are_local() -> None:
    with pytest.raises(ConfigError, match=r"deploy\.replicas 2 needs deploy\.target: local"):
        resolve(overrides=["deploy.replicas=2", "deploy.target=docker"])
