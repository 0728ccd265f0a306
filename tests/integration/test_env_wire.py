"""The environment over the wire: a real server, real sockets, real sandboxes."""

import json
from collections.abc import Iterator

import httpx
import pytest

from env.client import Sessions, check_wire
from env.errors import EpisodeError, RefusedError
from env.models import WIRE_VERSION, FrameTurn, RLMAction
from env.settings import rules
from rewards.combine import COMPONENTS
from tasks.deployment.checks import metadata
from tasks.errors import ConfigError


@pytest.fixture
def session(server_url: str) -> Iterator[Sessions]:
    with Sessions(server_url, 1) as opened:
        yield opened


def _code(*cells: tuple[int, str]) -> RLMAction:
    return RLMAction(turns=[FrameTurn(frame=n, text=f"```repl\n{code}\n```") for n, code in cells])


# --- episodes


def test_components_and_counters_come_with_the_end_and_it_is_final(session, server_problems):
    problem = server_problems.get(server_problems.ids("test", "hard")[2])
    span = problem.evidence[0].spans[0]
    session.reset(0, problem_id=problem.problem_id).result()
    code = f'FINAL(rlm_query_batched(["a"] * 2, [context["{span.paper_id}"]] * 2))'
    session.step(0, _code((0, code))).result()
    done = session.step(0, _code((1, f"FINAL([{span.text!r}])"), (2, "FINAL([])"))).result()
    assert done.done
    assert done.metrics.precision == 1.0
    assert set(done.components) == set(COMPONENTS)
    assert done.problem.tier == problem.tier
    assert (done.counters.turns, done.counters.sub_calls, done.counters.frames) == (3, 2, 3)
    with pytest.raises(RefusedError, match="ended"):
        session.step(0, RLMAction(text="x")).result()


def test_no_proxy_is_asked_for_a_server_of_this_machine(server_url, monkeypatch):
    monkeypatch.setattr("env.client._same_wire", set())
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Sessions(server_url, 10_000) as opened:
        assert opened.count < 10_000  # as the server says
        assert opened.reset(0, seed=0).result().frames


# --- refusals


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (RLMAction(), "empty"),
        (RLMAction(text="x", turns=[FrameTurn(frame=0, text="x")]), "not both"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(session, action, word):
    session.reset(0, seed=0).result()
    with pytest.raises(RefusedError, match=word):
        session.step(0, action).result()
    after = session.step(0, _code((0, "print(7)"))).result()
    assert after.counters.turns == 1
    assert after.frames[0].messages[0].content == "7"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"problem_id": "no such"}, "no problem for problem_id 'no such'"),
        ({"problem_id": 7}, "problem_id must be a string"),
        ({"split": "train", "difficulty": "impossible"}, "no problem for 'train', 'impossible'"),
        ({"seed": "three"}, "seed must be a whole number"),
        ({"colour": "red"}, "reset takes problem_id"),
        ({"question": "Why?"}, "papers must be a dict"),
        ({"question": "Why?", "papers": {"a": 7}}, "every paper must be a text"),
        ({"question": "Why?", "papers": {"a": "x" * 2_000_001}}, "longer than 2000000 characters"),
    ],
)
def test_wrong_resets_are_refused_in_words_and_leave_the_episode(session, arguments, words):
    session.reset(0, seed=0).result()
    session.step(0, _code((0, "x = 41"))).result()
    with pytest.raises(RefusedError, match=words):
        session.reset(0, **arguments).result()
    after = session.step(0, _code((0, "print(x + 1)"))).result()
    assert after.frames[0].messages[0].content == "42"


# --- own documents


def test_own_documents_play_without_a_reward(session: Sessions) -> None:
    first = session.reset(
        0, question="Who wins?", papers={"a": "The <|im_end|> cat wins.", "b": "No."}
    ).result()
    assert first.frames[0].messages[1].content == "Who wins?\ncontext: 2 papers"
    shown = session.step(0, _code((0, "print(context['a'])"))).result()
    assert "<|im_end|>" not in shown.frames[0].messages[0].content
    done = session.step(0, _code((0, "FINAL(search(context, 'wins'))"))).result()
    assert (done.done, done.reward, done.components, done.metrics) == (True, None, {}, None)


# --- other fates


def test_a_lost_connection_voids_the_episode_and_the_next_reset_reconnects(session):
    session.reset(0, seed=0).result()
    session._loop.call_soon_threadsafe(session._clients[0]._ws.transport.abort)
    with pytest.raises(EpisodeError):
        session.step(0, RLMAction(text="x")).result()
    assert session.reset(0, seed=0).result().frames[0].status == "ready"


# --- metadata


def test_a_server_of_another_wire_version_is_refused_with_both_and_the_fix(server_url, monkeypatch):
    with pytest.raises(RefusedError, match=f"version 1 .*, this client {WIRE_VERSION}"):
        check_wire("here", {"name": "rlm", "version": "0.1.0"})  # all servers before version 2
    monkeypatch.setattr("env.client._same_wire", set())
    monkeypatch.setattr("env.client.WIRE_VERSION", 9)
    says = rf"{server_url} speaks wire version {WIRE_VERSION}, this client 9.*Deploy"
    with Sessions(server_url, 1) as sessions, pytest.raises(RefusedError, match=says):
        sessions.reset(0, seed=0).result()
    with pytest.raises(ConfigError, match=f"^{says}"):
        metadata(server_url)


def test_metadata_names_the_enforced_layers_and_no_gold(server_url, server_params, server_problems):
    about = httpx.get(f"{server_url}/metadata").json()
    problem = server_problems.get(server_problems.ids("test", "hard")[1])
    assert not any(s.text in json.dumps(about) for fact in problem.evidence for s in fact.spans)
    assert about["name"] == "rlm"
    assert about["wire_version"] == WIRE_VERSION == 4
    assert "seccomp" in about["sandbox_layers"]
    assert about["rules"] == rules(server_params.env, server_params.rewards)
