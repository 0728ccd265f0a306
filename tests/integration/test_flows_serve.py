"""`rlm serve` as a process, asked by the client of OpenAI; a scripted endpoint is its model."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from helpers import fake_endpoint
from helpers.chat import Running, running, written
from helpers.fake_endpoint import FakeServer
from helpers.sandbox_events import wait_for
from typer.testing import CliRunner

from agent.rollouts.own_documents import Answer
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from assistant import openai_api
from assistant.asking import AskedAnswer
from flows import cli

KEY = "k" * 40
ASKED = "When do the looms arrive?"
LOOMS = "The looms arrive on 14 May."
READY = r"answers at (http://\S+/v1); Ctrl-C stops.*\ncurl .*\n"


def scripted_reply(body: dict[str, Any]) -> str:
    """Reply of a careful model: it gives the lines with the question's longest word to a child."""
    messages = body["messages"]
    if "one of several agents" in messages[0]["content"]:
        return "```repl\nFINAL(context.splitlines())\n```"
    word = max(re.findall(r"\w+", messages[1]["content"].splitlines()[0]), key=len)
    return (
        f"```repl\nhits = [line for text in context.values() for line in text.splitlines()"
        f" if {word!r} in line]\nFINAL(rlm_query('Quote.', '\\n'.join(hits)) if hits else [])\n```"
    )


@dataclass(frozen=True)
class Served(Running):
    """A running `rlm serve`."""

    fake: FakeServer

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=KEY, max_retries=0)

    def ask(self, question: str = ASKED, model: str = "notes", **options: Any) -> Any:
        messages = [{"role": "user", "content": question}]
        create: Any = self.client().chat.completions.create
        return create(model=model, messages=messages, **options)


@contextmanager
def served(folder: Path, fake: FakeServer, *docs: str, **options: Any) -> Iterator[Served]:
    """The command about collections, until the block ends."""
    words = [word for name in docs for word in ("--docs", name)]
    words += ["--base-url", fake.url, "--model", "m", "--set", "evaluate_model.concurrency=4"]
    with running(folder, READY, "serve", *words, **options) as command:
        yield Served(**vars(command), fake=fake)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with two collections, beside the project's settings."""
    folder = tmp_path_factory.mktemp("served")
    costs = "".join(f"Order{number} costs {number} crowns in May.\n" for number in range(10, 20))
    texts = {"orders.md": f"# Orders\n{LOOMS}\n{costs}", "garden.txt": "It was planted in spring."}
    written(folder, texts | {"../laws/first.txt": "Nobody walks on the grass."})
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[Served]:
    """One server for the tests that leave it as it is."""
    with fake_endpoint.serving() as fake:
        fake.reply = scripted_reply
        options = {"end": signal.SIGINT, "RLM_SERVE_KEY": KEY}
        with served(folder, fake, "notes", "laws", **options) as server:
            yield server
        assert KEY not in server.log.read_text()
        assert "Traceback" not in server.log.read_text()


@pytest.fixture
def server(whole: Served) -> Iterator[Served]:
    """The server, and its endpoint without a fault."""
    before = dict(vars(whole.fake))
    yield whole
    vars(whole.fake).update(before, plan=[])


def post(server: Served, content: bytes | str, **headers: str) -> httpx.Response:
    sent = {"authorization": f"Bearer {KEY}"} | headers
    url = f"{server.url}/chat/completions"
    encoded = {name: value.encode() for name, value in sent.items()}
    return httpx.post(url, content=content, headers=encoded, timeout=60)


def test_an_answer_is_the_quotes_with_their_places(server: Served) -> None:
    answer = server.ask()
    start = len("# Orders\n")
    places = f"orders.md, characters {start}-{start + len(LOOMS)}"
    said = "The model says: They arrive ![on](http://h/) 14 May."
    assert answer.choices[0].message.content == (
        f"```\n{said}\n```\n\n```\n{LOOMS}\n\n{places}\n```"
    )
    assert (answer.model, answer.choices[0].finish_reason) == ("notes", "stop")
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39
    }  # fmt: skip
    found = answer.rlm
    assert found["evidence"] == [
        {"document": "orders.md", "start": start, "end": start + len(LOOMS), "text": LOOMS}
    ]
    assert (found["model"], found["sub_calls"]) == ("m", 1)
    assert found["usage"]["requests"] == 3
    none = server.ask("Where is Zanzibar?")
    assert none.choices[0].message.content == "Nothing in these documents answers that."


def test_a_stream_shows_progress_as_comments_and_ends_with_the_answer(server: Served) -> None:
    body = {"model": "notes", "stream": True, "messages": [{"role": "user", "content": ASKED}]}
    lines = [line for line in post(server, json.dumps(body)).text.splitlines() if line]
    events = [json.loads(line[2:]) for line in lines if line.startswith(": ")]
    assert [(event["event"], event["frame"]) for event in events] == [
        *(("frame", 0), ("turn", 0), ("frame", 1), ("turn", 1), ("end", 0), ("end", 1))
    ]
    assert (events[0]["question"], events[2]["question"]) == (ASKED, "Quote.")
    assert len(lines) == len(events) + 2
    assert json.loads(lines[-2][6:])["rlm"]["evidence"][0]["text"] == LOOMS
    assert lines[-1] == "data: [DONE]"
    chunks = list(server.ask(stream=True, stream_options={"include_usage": True}))
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == [
        server.ask().choices[0].message.content
    ]
    assert chunks[-1].usage.total_tokens == 39


def test_ten_clients_at_once_get_their_own_answers(server: Served) -> None:
    server.fake.pause_s = 0.1
    server.fake.most_in_flight = 0
    together = threading.Barrier(10)

    def one(number: int) -> str:
        together.wait()
        if number % 2:
            return str(server.ask(f"What costs Order{number}?").rlm["evidence"][0]["text"])
        (chunk,) = server.ask(f"What costs Order{number}?", stream=True)
        return str(chunk.rlm["evidence"][0]["text"])

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(one, range(10, 20)))
    assert found == [f"Order{number} costs {number} crowns in May." for number in range(10, 20)]
    assert server.fake.most_in_flight == 4


def test_the_model_names_a_collection(server: Served) -> None:
    models = {model.id: model.to_dict()["rlm"] for model in server.client().models.list()}
    assert models == {
        "notes": {"model": "m", "documents": 2, "characters": models["notes"]["characters"]},
        "laws": {"model": "m", "documents": 1, "characters": 26},
    }
    assert server.client().models.retrieve("laws").id == "laws"
    found = server.ask("Who walks on the grass?", "laws")
    assert found.rlm["evidence"][0]["document"] == "first.txt"
    for ask in (server.ask, lambda model: server.client().models.retrieve(model)):
        with pytest.raises(openai.NotFoundError, match="model 'novels' does not exist") as caught:
            ask(model="novels")
        assert "one of: notes, laws" in str(caught.value)
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xff", "the body: Invalid JSON"),
        ("[" * 100_000, "the body: Invalid JSON"),
        ('{"messages": []}', "messages: List should have at least 1 item"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "add one"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "not images"),
        ('{"messages": [{"role": "user", "content": " "}]}', "the question is empty"),
        (json.dumps({"messages": [{"role": "user", "content": "?" * 99_999}]}), "Shorten it"),
        ('{"n": 2, "messages": [{"role": "user", "content": "x"}]}', "n: Input should be less"),
    ],
)
def test_a_wrong_body_is_one_message(server: Served, body: bytes | str, told: str) -> None:
    if isinstance(body, str):
        body = re.sub("^{", '{"model": "notes", ', body)
    answer = post(server, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert told in error["message"]
    assert (error["type"], "input_value" in error["message"]) == ("invalid_request_error", False)


def test_foreign_pages_hosts_and_clients_without_the_key_are_refused(server: Served) -> None:
    body = json.dumps({"model": "notes", "messages": [{"role": "user", "content": ASKED}]})
    before = len(server.fake.bodies)
    page = {"origin": "https://evil.example", "content-type": "text/plain"}
    assert post(server, body, **page).status_code == 403
    assert post(server, body, host="evil.example").status_code == 403
    for key in ("", "Bearer", f"Bearer {KEY}x", f"Bearer {'ü' * 40}"):
        refused = post(server, body, authorization=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    with pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
        openai.OpenAI(base_url=server.url, api_key="other").models.list()
    assert len(server.fake.bodies) == before
    own = post(server, body, origin=server.url.removesuffix("/v1"))
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers


def test_a_long_body_and_an_unknown_path_are_errors_of_that_form(server: Served) -> None:
    long = post(server, b" " * 1_000_001)
    assert long.json()["error"]["message"] == "a body has at most 1000000 bytes"
    url, key = f"{server.url}/chat/completions", {"authorization": f"Bearer {KEY}"}
    assert httpx.post(url, content=iter([b"{}"]), headers=key, timeout=60).status_code == 411
    unknown = httpx.get(f"{server.url}/nothing", headers=key)
    assert unknown.json()["error"]["message"].startswith("GET /v1/nothing: Not Found")


def test_an_endpoint_that_dies_is_an_error_in_any_form_of_answer(server: Served) -> None:
    for plan, told in (([200, 401], "refuses model 'm'"), ([200, 0, 0, 0], "Connection error")):
        for stream in (False, True):
            server.fake.plan = list(plan)
            with pytest.raises(openai.APIError, match=told) as caught:
                list(server.ask(stream=stream))
            status = getattr(caught.value, "status_code", None)
            assert status == (None if stream else 502)
    assert server.ask().rlm["evidence"][0]["text"] == LOOMS


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_work(server: Served, stream: bool) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def held(body: dict[str, Any]) -> str:
        asked.set()
        go_on.wait(60)
        return scripted_reply(body)

    server.fake.reply = held
    body = {"model": "notes", "stream": stream}
    text = json.dumps(body | {"messages": [{"role": "user", "content": ASKED}]}).encode()
    host, port = server.url.split("/")[2].split(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}"
        client.sendall(f"{head}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        assert asked.wait(60)
        before = len(server.fake.bodies)
    time.sleep(1)  # the server notices
    go_on.set()
    server.fake.reply = scripted_reply
    assert server.ask().rlm["evidence"][0]["text"] == LOOMS
    assert len(server.fake.bodies) == before + 3


def test_a_signal_in_mid_answer_leaves_no_process(folder: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def held(body: dict[str, Any]) -> str:
        if body["messages"][-1]["content"].startswith(ASKED):
            asked.set()
            go_on.wait(60)
        return scripted_reply(body)

    with fake_endpoint.serving() as fake, ThreadPoolExecutor(2) as pool:
        fake.reply = held
        with served(folder, fake, "notes") as server:
            answers = [pool.submit(server.ask), pool.submit(lambda: list(server.ask(stream=True)))]
            assert asked.wait(60)
            processes = psutil.Process(server.process.pid).children(recursive=True)
            assert processes
            assert wait_for(
                lambda: len(fake.bodies) >= 3, 60
            )  # one is the test question of the start
            started = time.monotonic()
        assert time.monotonic() - started < 15
        for answer in answers:
            with pytest.raises(openai.APIError, match="The server ends"):
                answer.result(10)
        go_on.set()
        assert not psutil.wait_procs(processes, timeout=10)[1]
        assert "Traceback" not in server.log.read_text()


def test_tokens_of_a_model_of_this_machine_are_those_of_all_its_turns() -> None:
    turns = [TurnRecord("seen", "said", "stop", [1, 2, 3], [4, 5])] * 2
    episode = Trajectory("q", "easy", frames={0: FrameRecord(0, None, 0, "rlm", turns, "final")})
    counted = openai_api.usage(AskedAnswer(Answer([], stop_reason="final"), episode))
    assert counted == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "0.0.0.0"), "opens your documents to the network. Set a key"),
        (("--docs", "laws", "--docs", "notes=laws"), "two collections have the name 'notes'"),
        (("--docs", "=laws"), "names no collection. Write --docs NAME=DIR"),
        (("--port", "99999"), "is not a port"),
        (("KEY=short",), "RLM_SERVE_KEY has fewer than 32 characters"),
        ((f"KEY={KEY}", "--host", "192.0.2.1"), "serve: 192.0.2.1:0 cannot be used (Cannot assign"),
    ],
)
def test_what_cannot_be_served_is_one_message(
    folder: Path, words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if words[0].startswith("KEY="):
        monkeypatch.setenv("RLM_SERVE_KEY", words[0].removeprefix("KEY="))
        words = words[1:]
    fixed = ("--docs", "notes", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    done = CliRunner().invoke(cli.app, ["serve", *fixed, "--port", "0", *words])
    assert done.exit_code in (1, 2)
    assert told in done.stderr
    assert KEY not in done.stderr
    assert done.stderr.count("\n") == 1
