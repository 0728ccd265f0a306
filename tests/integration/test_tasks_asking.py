"""Questions of many threads to one model, on a real environment server."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from helpers import fake_endpoint
from helpers.fake_endpoint import FakeServer

from agent.policies.base import Policy
from agent.policies.scripted import Scripted, Seen, block
from assistant import asking
from tasks import evaluate
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.registry import serving

NOTES = {f"note{number}": f"The key {number} opens room {number + 100}." for number in range(10)}
CHILD = block("FINAL([context])")


def code_of(question: str) -> str:
    """Turn of a root: it gives the note of the question's number to a child."""
    number = re.search(r"\d|$", question)[0]
    return block(
        f"text = next(t for t in context.values() if 'key {number} ' in t)\n"
        "FINAL(rlm_query('Quote it.', text))"
    )


def reply(body: dict[str, Any]) -> str:
    """Reply of the endpoint's model."""
    asked = body["messages"][1]["content"].splitlines()[0]
    return CHILD if asked == "Quote it." else code_of(asked)


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch, server_url: str) -> None:
    monkeypatch.setattr(serving, "own_server", lambda params: nullcontext(server_url))


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_endpoint.serving() as server:
        server.reply = reply
        yield server


def answers(ask: asking.Ask) -> list[asking.AskedAnswer]:
    """Answers to ten questions that ten threads ask at once."""
    together = threading.Barrier(10)

    def one(number: int) -> asking.AskedAnswer:
        together.wait()
        return ask(f"Which room does key {number} open?", NOTES)

    with ThreadPoolExecutor(10) as pool:
        return list(pool.map(one, range(10)))


def quotes(found: list[asking.AskedAnswer]) -> list[list[str]]:
    return [[quote.text for quote in one.answer.evidence] for one in found]


def test_ten_threads_share_an_endpoint_and_each_gets_its_own_answer(
    fake: FakeServer, server_params: Params
) -> None:
    fake.pause_s = 0.1
    settings = server_params.evaluate_model.model_copy(update={"concurrency": 4})
    params = server_params.model_copy(update={"evaluate_model": settings})
    with asking.opened(asking.AskedModel("m", params, base_url=fake.url)) as ask:
        assert ask.at_once == 4
        found = answers(ask)
    assert quotes(found) == [[text] for text in NOTES.values()]
    assert [one.usage.requests for one in found if one.usage] == [2] * 10
    assert fake.most_in_flight == 4


def test_ten_threads_share_a_local_model_that_plays_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, server_params: Params, tmp_path: Path
) -> None:
    inside = threading.Lock()

    def turn(seen: Seen) -> str:
        assert inside.acquire(blocking=False)
        try:
            asked = seen.opening[-1].content.splitlines()[0]
            return CHILD if asked == "Quote it." else code_of(asked)
        finally:
            inside.release()

    policy: Policy = Scripted(turn)
    monkeypatch.setattr(evaluate, "load_policy", lambda *_: policy)
    with asking.opened(asking.AskedModel("m", server_params, folder=tmp_path)) as ask:
        found = answers(ask)
    assert quotes(found) == [[text] for text in NOTES.values()]
    assert [one.usage for one in found] == [None] * 10


def test_who_watches_sees_the_tree_grow(fake: FakeServer, server_params: Params) -> None:
    events: list[dict[str, Any]] = []
    asked = "Which room does key 3 open?"
    model = asking.AskedModel("m", server_params, base_url=fake.url)
    with asking.opened(model) as ask:
        found = ask(asked, NOTES, watch=events.append)
    root = {"event": "frame", "frame": 0, "parent": None, "kind": "rlm", "depth": 0}
    child = {"event": "frame", "frame": 1, "parent": 0, "kind": "rlm", "depth": 1}
    assert events == [
        root | {"question": asked},
        {"event": "turn", "frame": 0, "turn": 0, "text": code_of(asked), "observation": ""},
        child | {"question": "Quote it."},
        {"event": "turn", "frame": 1, "turn": 0, "text": CHILD, "observation": ""},
        {"event": "end", "frame": 0, "stop_reason": "final"},
        {"event": "end", "frame": 1, "stop_reason": "final"},
    ]
    told = asking.answer_event(found, model)
    assert (told["event"], told["model"], told["usage"]["requests"]) == ("answer", "m", 2)
    assert told["evidence"] == [
        {"document": "note3", "start": 0, "end": len(NOTES["note3"]), "text": NOTES["note3"]}
    ]


def test_a_stopped_question_sends_no_more_requests(fake: FakeServer, server_params: Params) -> None:
    stop, reached = threading.Event(), threading.Event()
    hold = threading.Event()

    def held(body: dict[str, Any]) -> str:
        if body["messages"][-1]["content"].startswith("Which"):
            reached.set()
            hold.wait(60)
        return reply(body)

    fake.reply = held
    with asking.opened(asking.AskedModel("m", server_params, base_url=fake.url)) as ask:
        before = len(fake.bodies)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, "Which room does key 3 open?", NOTES, stop=stop)
            assert reached.wait(60)
            stop.set()
            # The endpoint still holds its answer back.
            with pytest.raises(StageError, match="no longer wanted"):
                asked.result(30)
        hold.set()
        assert len(fake.bodies) == before + 1
        with pytest.raises(StageError, match="no longer wanted"):
            ask("Which room does key 3 open?", NOTES, stop=stop)
        assert len(fake.bodies) == before + 1
        assert quotes([ask("Which room does key 3 open?", NOTES)]) == [[NOTES["note3"]]]


def test_a_question_behind_a_stopped_one_is_played(
    monkeypatch: pytest.MonkeyPatch, server_params: Params, tmp_path: Path
) -> None:
    stop = threading.Event()
    policy = Scripted(lambda seen: code_of(seen.opening[-1].content.splitlines()[0]))
    monkeypatch.setattr(evaluate, "load_policy", lambda *_: policy)
    with asking.opened(asking.AskedModel("m", server_params, folder=tmp_path)) as ask:
        with pytest.raises(StageError, match="no longer wanted"):
            ask("Open key 1?", NOTES, watch=lambda event: stop.set(), stop=stop)
        with pytest.raises(StageError, match="the question is empty"):
            ask(" ", NOTES)
        events: list[str] = []
        with pytest.raises(StageError):
            ask("Open key 1?", NOTES, watch=lambda event: events.append(event["event"]), stop=stop)
        assert events == []
