"""`rlm mcp` as a process, called by the client of the MCP SDK; a scripted endpoint answers."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import fake_endpoint
from helpers.looms import QUESTION, ROOT, written
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SENTENCE = "The looms arrive on 14 May."


def scripted_reply(body: dict[str, Any]) -> str:
    """The line with the month that the question names, or with the looms."""
    (word,) = {w for w in ("March", "looms") if w in body["messages"][1]["content"]} or {"looms"}
    return (
        "```python\nprint('to the standard output')\n"
        f"FINAL([p for n in context for p in context[n].splitlines() if {word!r} in p])\n```"
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    texts = {"orders.md": f"# Orders\n{SENTENCE}\n", "garden.txt": "Der Garten blüht im March."}
    (written(tmp_path, texts) / "notes/broken.pdf").write_bytes(b"no PDF at all")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake() -> Iterator[fake_endpoint.FakeServer]:
    with fake_endpoint.serving() as server:
        server.reply = scripted_reply
        yield server


def words(url: str) -> list[str]:
    own = f"-m flows.cli mcp --docs notes --base-url {url} --model m"
    return f"{own} --set evaluate_model.prompt_price=1000".split()


def offspring() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_an_agent_asks_and_errs_and_no_process_is_left(folder, fake):
    before = set(offspring())
    named = {"args": words(fake.url), "env": {"PYTHONPATH": str(ROOT)}, "cwd": folder}
    server = StdioServerParameters(command=sys.executable, **named)

    async def talk(session: ClientSession) -> list[psutil.Process]:
        await session.initialize()
        assert [tool.name for tool in (await session.list_tools()).tools] == ["ask_documents"]
        assert "broken.pdf: it is not a complete PDF" in (folder / "errors.txt").read_text()
        wrong = await session.call_tool("ask_documents", {"question": " "})
        assert wrong.isError
        assert "the question is empty; write one" in wrong.content[0].text
        asked = await session.call_tool("ask_documents", {"question": QUESTION})
        (quote,) = asked.structuredContent["evidence"]
        assert quote == {"document": "orders.md", "start": 9, "end": 36, "text": SENTENCE}
        tokens = {"prompt_tokens": 10, "completion_tokens": 3}
        assert asked.structuredContent["cost"] == {"requests": 1, "price": 0.01, **tokens}
        fake.usage = None
        again = await session.call_tool("ask_documents", {"question": "Who came in March?"})
        assert again.structuredContent["evidence"][0]["text"] == "Der Garten blüht im March."
        unknown = dict.fromkeys(("price", *tokens))
        assert again.structuredContent["cost"] == {"requests": 1, **unknown}
        return [one for one in offspring() if one not in before]

    async def connected() -> list[psutil.Process]:
        with (folder / "errors.txt").open("w") as errors:
            async with stdio_client(server, errors) as streams, ClientSession(*streams) as session:
                return await talk(session)

    processes = asyncio.run(connected())
    assert len(processes) >= 2  # the server and its environment
    assert not psutil.wait_procs(processes, timeout=5.0)[1]


def started(folder: Path, url: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    server = subprocess.Popen([sys.executable, *words(url)], cwd=folder, text=True, **pipes)
    client = {"protocolVersion": "2025-06-18", "clientInfo": {"name": "t", "version": "1"}}
    send(server, "initialize", {"id": 1}, capabilities={}, **client)
    send(server, "notifications/initialized")
    return server


def send(server: subprocess.Popen[str], method: str, number: Any = (), **params: Any) -> None:
    body = {"jsonrpc": "2.0", "method": method, "params": params, **dict(number)}
    server.stdin.write(json.dumps(body) + "\n")
    server.stdin.flush()


def ask(server: subprocess.Popen[str], number: int, question: str) -> None:
    call = {"name": "ask_documents", "arguments": {"question": question}}
    send(server, "tools/call", {"id": number}, **call, _meta={"progressToken": number})


def read_until(server: subprocess.Popen[str], text: str) -> list[dict[str, Any]]:
    """Lines of the output to the first that has the text; nothing but the protocol."""
    lines = [""]
    while text not in lines[-1]:
        lines.append(server.stdout.readline())
        assert lines[-1], server.communicate()
    return [json.loads(line) for line in lines[1:]]


def assert_ended(server: subprocess.Popen[str], processes: list[psutil.Process], code: int) -> None:
    """It ends soon after the end of its input, in order and with all its processes."""
    start = time.monotonic()
    rest, errors = server.communicate(timeout=30)
    assert server.returncode == code, errors
    assert time.monotonic() - start < 8.0
    assert rest == ""
    assert "Traceback" not in errors
    assert len(processes) >= 2
    assert not psutil.wait_procs(processes, timeout=5.0)[1]


def test_a_cancelled_call_gives_up_its_place_and_the_end_of_the_input_ends_a_question(folder, fake):
    before = set(offspring())
    played_on = []

    def reply(body: dict[str, Any]) -> str:
        if QUESTION in json.dumps(body):  # not the test question, nor another one
            time.sleep(30)
            played_on.append(body)
        return scripted_reply(body)

    fake.reply = reply
    server = started(folder, fake.url)
    for number, question in enumerate((QUESTION, QUESTION, "Who came in March?"), 2):
        ask(server, number, question)
    read_until(server, "m searches 2 documents")
    send(server, "tools/list", {"id": 5})
    read_until(server, "ask_documents")  # it does not wait for the questions
    for number in (2, 3):  # one is played, one waits
        send(server, "notifications/cancelled", requestId=number)
    *told, answer = read_until(server, '"result"')
    assert not played_on
    assert {line["id"] for line in told if "error" in line} == {2, 3}
    assert answer["result"]["structuredContent"]["evidence"]
    ask(server, 6, QUESTION)
    read_until(server, "m searches 2 documents")
    assert_ended(server, [one for one in offspring() if one not in before], code=0)


def test_a_signal_ends_everything(folder: Path, fake: fake_endpoint.FakeServer) -> None:
    before = set(offspring())
    server = started(folder, fake.url)
    server.stdin.write("not JSON\n")
    ask(server, 2, QUESTION)
    read_until(server, "evidence")
    processes = [one for one in offspring() if one not in before]
    server.send_signal(signal.SIGINT)
    assert server.wait(10) == 130
    assert_ended(server, processes, code=130)
