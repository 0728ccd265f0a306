"""`rlm chat`: a process, its page in a real browser, and requests that it refuses."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as escaped

import httpx
import pytest
from helpers import chat, fake_endpoint
from helpers.browser import BINARY, Page
from helpers.chat import Chatting, ask, chatting, press, window
from helpers.fake_endpoint import FakeServer

from assistant import chat_page

pytestmark = pytest.mark.xdist_group("chat")  # so that one process serves the page
needs_browser = pytest.mark.skipif(BINARY is None, reason="needs Chromium")

TAG = "<img src=x onerror=\"document.title='owned'\">\u202e.txt"
TITLE = TAG.replace("\u202e", r"\u202e")  # it would turn the rest of the line around
TEXTS = {
    "orders.md": (
        "# Orders 🧵🪡\n\nThe looms arrive on 14 May. 🚂 Before, nothing.\n"
        "No looms go by rail this year.\n"
    ),
    TAG: "<script>document.title = 'owned'</script>\n<b>The looms are late.</b>\n",
    "garden.txt": "The garden was planted in spring.\n",
}
QUOTES = {
    "orders.md": ["The looms arrive on 14 May", "No looms go by rail this year."],
    TAG: ["<b>The looms are late.</b>"],
}


@dataclass
class Stage:
    """A chat, and the stand-in endpoint that plays its model."""

    chat: Chatting
    fake: FakeServer
    children: threading.Event = field(default_factory=threading.Event)
    """Children answer while it is set."""
    held: list[str] = field(default_factory=list)
    """Child requests that are not answered yet."""

    def reply(self, body: dict[str, Any]) -> str:
        """Reply of the stand-in."""
        if chat.is_child(body):
            self.held.append("")
            self.children.wait(timeout=60)
            self.held.pop()
        return chat.scripted_reply(body)

    def until_held(self, number: int) -> None:
        """Wait until that many child requests are held."""
        deadline = time.monotonic() + 30
        while len(self.held) != number:
            assert time.monotonic() < deadline, f"{len(self.held)} requests are held"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = chat.written(tmp_path_factory.mktemp("chat"), TEXTS)
    with fake_endpoint.serving() as fake:
        words = ["--base-url", fake.url, "--model", "loomis"]
        words += ["--set", "evaluate_model.prompt_price=1000"]
        with chatting(folder, *words) as running:
            stage = Stage(running, fake)
            fake.reply = stage.reply
            yield stage


@pytest.fixture
def stage(served: Stage) -> Iterator[Stage]:
    served.children.set()
    served.fake.bodies.clear()
    yield served
    served.children.set()
    served.until_held(0)


def events(url: str, question: str) -> list[dict[str, Any]]:
    """Events of a question that a program asks."""
    answer = httpx.post(f"{url}api/ask", json={"question": question}, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    return [json.loads(part[6:]) for part in answer.text.split("\n\n") if part]


def texts_of(tab: Page, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map(n => n.textContent)"
    found: list[str] = tab.run(f"JSON.stringify({script})")
    return [text.replace("\xa0", " ") for text in json.loads(found)]


def quote_of(text: str) -> str:
    """JavaScript of the button of a quote."""
    wanted = json.dumps(text)
    return f"[...document.querySelectorAll('.quote')].find(n => n.textContent === {wanted})"


def no_overflow(tab: Page) -> bool:
    return bool(tab.run("document.documentElement.scrollWidth <= window.innerWidth"))


@needs_browser
@pytest.mark.parametrize("width", chat.WIDTHS)
def test_a_reader_asks_watches_the_tree_and_reads_a_highlighted_quote(
    stage: Stage, width: int
) -> None:
    stage.children.clear()
    with window(stage.chat.url, width) as tab:
        assert tab.run("document.activeElement.id") == "question"
        assert no_overflow(tab)
        ask(tab, "When do the <i>looms</i> arrive?")
        # The root waits for its children, which write their first turn.
        tab.until("document.querySelectorAll('.agent.works').length === 3")
        assert tab.run("document.querySelectorAll('.agent .agent').length") == 2
        assert texts_of(tab, ".agent > .mine")[0].startswith("```repl\nhits = search(")
        assert "new: hits" in texts_of(tab, ".agent > pre:not(.mine)")[0]
        assert texts_of(tab, "#state") == ["Asking loomis about 3 documents. Escape stops."]
        assert re.fullmatch(r"\d+\.\d s · 3 agents · 2 turns", texts_of(tab, ".facts")[0])
        assert no_overflow(tab)
        stage.children.set()
        tab.until("document.querySelectorAll('.quote').length === 3")
        assert texts_of(tab, "#state") == ["3 quotes in 2 documents."]
        assert texts_of(tab, ".exchange > summary") == ["When do the <i>looms</i> arrive?"]
        assert set(texts_of(tab, ".answer h3")) == {"orders.md", TITLE}
        assert texts_of(tab, ".facts")[0].endswith(
            "4 turns · 2 sub-calls · depth 1 · 4 requests · 40 + 12 tokens · cost 0.0400"
        )
        assert texts_of(tab, ".state") == ["final"] * 3
        shown = tab.run("[...document.querySelectorAll('.agent')].map(n => n.open).join()")
        assert shown == "true,false,false"
        # By keyboard: from a quote to its place, and back.
        tab.run(f"{quote_of('No looms go by rail this year.')}.focus()")
        press(tab, "Enter")
        tab.until("!document.getElementById('reader').hidden")
        assert texts_of(tab, "#text") == [TEXTS["orders.md"]]
        assert texts_of(tab, "#text mark") == QUOTES["orders.md"]
        assert tab.run("document.activeElement.textContent") == "No looms go by rail this year."
        assert texts_of(tab, "#reader-facts") == ["Quote 2 of 2 in this document."]
        assert no_overflow(tab)
        press(tab, "Escape")
        assert tab.run("document.getElementById('reader').hidden")
        assert tab.run("document.activeElement.textContent") == "No looms go by rail this year."


@needs_browser
def test_hostile_names_and_texts_are_shown_as_text(stage: Stage) -> None:
    with window(stage.chat.url, 1280) as tab:
        ask(tab, "<img src=x onerror=\"document.title='owned'\"> looms?")
        tab.until("document.querySelectorAll('.quote').length === 3")
        assert set(QUOTES[TAG]) < set(texts_of(tab, ".quote"))
        tab.run(f"{quote_of(*QUOTES[TAG])}.click()")
        tab.until("document.querySelector('mark')")
        assert texts_of(tab, "#reader-title") == [TITLE]
        assert texts_of(tab, "#text") == [TEXTS[TAG]]
        assert tab.run("document.querySelectorAll('img, b, i, main script').length") == 0
        assert tab.run("document.title") == "Ask your documents"


@needs_browser
def test_escape_stops_the_question_and_the_next_one_is_answered(stage: Stage) -> None:
    stage.children.clear()
    with window(stage.chat.url, 1280) as tab:
        ask(tab, "When do the looms arrive?")
        tab.until("document.querySelectorAll('.agent.works').length === 3")
        press(tab, "Escape")
        tab.until("document.getElementById('state').textContent === 'Stopped.'")
        assert texts_of(tab, ".agent .state") == ["stopped"] * 3
        stage.children.set()
        ask(tab, "And now?")
        tab.until("document.querySelectorAll('.quote').length === 3")
        assert texts_of(tab, ".exchange > summary") == ["And now?", "When do the looms arrive?"]
        assert tab.run("[...document.querySelectorAll('.exchange')].map(n => n.open).join()") == (
            "true,false"
        )


def test_events_have_one_form_and_positions_are_those_of_the_documents(stage: Stage) -> None:
    told = events(stage.chat.url, "When do the looms arrive?")
    assert {event["event"] for event in told} == {"frame", "turn", "end", "answer"}
    assert told[0] == {
        "event": "frame",
        "frame": 0,
        "parent": None,
        "kind": "rlm",
        "depth": 0,
        "question": "When do the looms arrive?",
    }
    answer = told[-1]
    found: dict[str, list[str]] = {}
    for quote in answer["evidence"]:
        name = escaped(quote["document"], safe="")
        text = httpx.get(f"{stage.chat.url}api/documents/{name}").text
        assert text[quote["start"] : quote["end"]] == quote["text"]
        found.setdefault(quote["document"], []).append(quote["text"])
    assert found == QUOTES
    assert (answer["model"], answer["usage"]["requests"], answer["cost"]) == ("loomis", 4, 0.04)


def test_a_browser_that_leaves_ends_its_question(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undecided(body: dict[str, Any]) -> str:
        text = stage.reply(body)
        return "```repl\nprint(1)\n```" if chat.is_child(body) else text

    monkeypatch.setattr(stage.fake, "reply", undecided)
    stage.children.clear()
    with httpx.stream("POST", f"{stage.chat.url}api/ask", json={"question": "When?"}) as answer:
        assert answer.status_code == 200
        stage.until_held(2)
    time.sleep(1.0)  # the question notices within 0.2 s
    stage.children.set()
    time.sleep(1.0)  # its children would ask for their next turns
    assert len(stage.fake.bodies) == 4
    monkeypatch.undo()
    assert len(events(stage.chat.url, "When?")[-1]["evidence"]) == 3


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example"}, 403),
        ({}, 200),
    ],
)
def test_a_foreign_page_is_refused(stage: Stage, headers: dict[str, str], status: int) -> None:
    sent = {"question": "When do the looms arrive?"}
    answer = httpx.post(f"{stage.chat.url}api/ask", json=sent, headers=headers, timeout=60)
    assert answer.status_code == status
    assert bool(stage.fake.bodies) == (status == 200)
    if "host" in headers:
        for path in ("", "api/documents", "api/documents/orders.md"):
            assert httpx.get(stage.chat.url + path, headers=headers).status_code == status


def test_no_file_but_the_documents_is_served(stage: Stage) -> None:
    for name in ("../params.yaml", "..%2Fparams.yaml", "%2Fetc%2Fpasswd", "nothing"):
        assert httpx.get(f"{stage.chat.url}api/documents/{name}").status_code == 404
    listed = httpx.get(f"{stage.chat.url}api/documents").json()["documents"]
    assert {item["name"]: item["size"] for item in listed} == {
        name: len(text) for name, text in TEXTS.items()
    }


def test_the_page_loads_nothing_from_elsewhere_and_nothing_as_markup(stage: Stage) -> None:
    for path, (name, kind) in chat_page.FILES.items():
        answer = httpx.get(stage.chat.url.rstrip("/") + path)
        assert answer.headers["content-type"].startswith(kind)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = (chat_page.FOLDER / name).read_text()
        assert answer.text == text
        assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", text)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
