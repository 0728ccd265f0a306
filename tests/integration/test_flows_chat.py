"""`rlm chat`: a process, its page in a real browser, and requests that it refuses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from helpers import browser, chat, fake_endpoint
from helpers.browser import BINARY, Page
from helpers.chat import ask, press, resize, window
from helpers.fake_endpoint import FakeServer
from helpers.sandbox_events import wait_for

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

    url: str
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
        assert wait_for(lambda: len(self.held) == number, 30), self.held


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = chat.written(tmp_path_factory.mktemp("chat"), TEXTS)
    with fake_endpoint.serving() as fake:
        words = ["chat", "--docs", "notes", "--base-url", fake.url, "--model", "loomis"]
        words += ["--set", "evaluate_model.prompt_price=1000"]
        with chat.running(folder, r"(http://127\.0\.0\.1:\d+/)\n", *words) as command:
            stage = Stage(command.url, fake)
            fake.reply = stage.reply
            yield stage


@pytest.fixture
def stage(served: Stage) -> Iterator[Stage]:
    served.children.set()
    served.fake.bodies.clear()
    yield served
    served.children.set()
    served.until_held(0)


def texts_of(tab: Page, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map(n => n.textContent)"
    found: list[str] = tab.run(f"JSON.stringify({script})")
    return [text.replace("\xa0", " ") for text in json.loads(found)]


def quote_of(text: str) -> str:
    """JavaScript of the button of a quote."""
    wanted = json.dumps(text)
    return f"[...document.querySelectorAll('.quote')].find(n => n.textContent === {wanted})"


def assert_fits(tab: Page) -> None:
    """Nothing overflows on a telephone and on a desktop."""
    for width in (390, 1280):
        resize(tab, width)
        tab.until(f"window.innerWidth === {width}")
        assert tab.run("document.documentElement.scrollWidth <= window.innerWidth"), width


@needs_browser
def test_a_reader_asks_watches_the_tree_and_reads_a_highlighted_quote(stage: Stage) -> None:
    stage.children.clear()
    with window(stage.url) as tab:
        assert tab.run("document.activeElement.id") == "question"
        assert_fits(tab)
        ask(tab, "When do the <i>looms</i> arrive?")
        # The root waits for its children, which write their first turn.
        tab.until("document.querySelectorAll('.agent.works').length === 3")
        assert tab.run("document.querySelectorAll('.agent .agent').length") == 2
        assert texts_of(tab, ".agent > .mine")[0].startswith("```repl\nhits = search(")
        assert "new: hits" in texts_of(tab, ".agent > pre:not(.mine)")[0]
        assert texts_of(tab, "#state") == ["Asking loomis about 3 documents. Escape stops."]
        assert re.fullmatch(r"\d+\.\d s · 3 agents · 2 turns", texts_of(tab, ".facts")[0])
        assert_fits(tab)
        stage.children.set()
        tab.until("document.querySelectorAll('.quote').length === 3")
        assert texts_of(tab, "#state") == ["3 quotes in 2 documents."]
        assert texts_of(tab, ".exchange > summary") == ["When do the <i>looms</i> arrive?"]
        assert set(texts_of(tab, ".answer h3")) == {"orders.md", TITLE}
        assert texts_of(tab, ".facts")[0].endswith(
            "4 turns · 2 sub-calls · depth 1 · 5 requests · 50 + 15 tokens · cost 0.0500"
        )
        said = "The model says: They arrive ![on](http://h/) 14 May."
        assert texts_of(tab, ".answer > p") == [said]
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
        assert_fits(tab)
        press(tab, "Escape")
        assert tab.run("document.getElementById('reader').hidden")
        assert tab.run("document.activeElement.textContent") == "No looms go by rail this year."


@needs_browser
def test_hostile_names_and_texts_are_shown_as_text(stage: Stage) -> None:
    with window(stage.url) as tab:
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
    with window(stage.url) as tab:
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


def test_a_foreign_page_is_refused(stage: Stage) -> None:
    url, foreign = stage.url, {"host": "evil.example"}
    for headers in ({"origin": "http://evil.example"}, foreign):
        answer = httpx.post(f"{url}api/ask", json={"question": "When?"}, headers=headers)
        assert answer.status_code == 403
    for path in ("", "api/documents", "api/documents/orders.md"):
        assert httpx.get(url + path, headers=foreign).status_code == 403
    assert not stage.fake.bodies


def test_no_file_but_the_documents_is_served(stage: Stage) -> None:
    for name in ("../params.yaml", "..%2Fparams.yaml", "%2Fetc%2Fpasswd", "nothing"):
        assert httpx.get(f"{stage.url}api/documents/{name}").status_code == 404
    listed = httpx.get(f"{stage.url}api/documents").json()["documents"]
    assert {item["name"]: item["size"] for item in listed} == {
        name: len(text) for name, text in TEXTS.items()
    }


def test_the_page_loads_nothing_from_elsewhere_and_nothing_as_markup(stage: Stage) -> None:
    browser.assert_safe(stage.url.rstrip("/"), chat_page.FOLDER, chat_page.FILES)
