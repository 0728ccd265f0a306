"""The FAQ example, on pages of its own: what is collected, and what search alone is measured at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.faq import opponents
from examples.faq.collect import collect
from tasks import config
from tasks.check_problems import read_problem_rows

SPHINX = """<html><body><h3>Navigation</h3><p>Not of the page.</p><div role="main">
<h1>Tower FAQ<a class="headerlink">#</a></h1><nav><p>Contents of this page</p></nav>
<p>Everything about the tower, in a few words.</p>
<h2>How high is it?<a class="headerlink">#</a></h2>
<p>Yes.</p><p>It rises <em>212 metres</em> above
the river, and its mast adds eleven more.</p><pre>height = 212\n\nmast = 11</pre>
<p>Before the last storm it was a little higher than that.</p>
<h2>Who built it</h2><p>A guild of carpenters from the valley, in nineteen years.</p>
<h2>Is it open?</h2><p>No.</p></div></body></html>"""
ASCIIDOC = """<html><body><div id="content"><h2>SYNOPSIS</h2><p>bridgefaq</p><dl>
<dt class="hdlist1">Why does the <code>bridge</code> hum?</dt>
<dd><p>Its cables swing in the wind from the lake, which blows on most afternoons.</p>
<pre>hum</pre><p>Nobody hears it in the winter, when the lake is frozen.</p></dd></dl>
<p>Part of a suite</p></div></body></html>"""
HIGH = "It rises 212 metres above the river, and its mast adds eleven more."
BEFORE = "Before the last storm it was a little higher than that."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection of two pages."""
    pages = []
    for name, html in (("tower", SPHINX), ("works-bridge", ASCIIDOC)):
        pages.append(tmp_path / f"{name}.html")
        pages[-1].write_text(html)
    assert collect("works", pages, tmp_path / "faq") == 2
    return tmp_path / "faq"


def test_headings_leave_the_text_and_become_questions(folder: Path) -> None:
    tower = (folder / "documents/works/works-tower.txt").read_text()
    assert tower.split("\n\n")[:3] == ["Everything about the tower, in a few words.", "Yes.", HIGH]
    assert "height = 212\n\nmast = 11" in tower
    for gone in ("How high", "Contents", "Navigation", "#", "Not of the page"):
        assert gone not in tower
    bridge = (folder / "documents/works/works--bridge.txt").read_text()
    assert bridge.startswith("Its cables swing")
    assert "suite" not in bridge
    rows = [json.loads(line) for line in (folder / "works.jsonl").read_text().splitlines()]
    assert [row["question"] for row in rows] == ["How high is it?", "Why does the bridge hum?"]
    assert [fact["quote"] for fact in rows[0]["evidence"]] == [HIGH, BEFORE]


def test_the_rows_are_in_the_format_of_own_files(folder: Path) -> None:
    rows, documents = str(folder / "works.jsonl"), str(folder / "documents")
    found = read_problem_rows(config.resolve(), rows, documents).found
    assert (len(found.problems), found.rejected) == (2, [])


class Backwards:
    """An embedder that puts the last passage first."""

    def scores(self, question: str, texts: list[str]) -> Any:
        return opponents.np.arange(len(texts), dtype=float)

    def order(self, question: str, texts: list[str]) -> list[int]:
        return list(range(len(texts)))[::-1]


def test_opponents_are_measured_by_the_characters_of_their_first_passages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opponents, "embedder", Backwards)
    papers, asked = opponents.load("works", folder)
    tower = asked[0]
    page = "works/works-tower.txt"
    found = [(page, HIGH), (page, BEFORE), (page, "Yes. Nobody wrote this.")]
    measured = opponents.measure(papers, tower, found)
    assert measured["k=1"] == pytest.approx(
        2 * len(HIGH) / (2 * len(HIGH) + len(BEFORE)), abs=0.001
    )
    assert measured["k=2"] == measured["recall 10"] == 1.0
    likely = lambda question, texts: opponents.np.arange(len(texts)) * 2.0  # noqa: E731
    ordered = opponents.orders(papers, "storm", 1000, likely)
    assert ordered["BM25"] == [(page, BEFORE)]
    assert ordered["likelihood"] == ordered["MiniLM"][::-1] != ordered["MiniLM"]
    unlikely = lambda question, texts: likely(question, texts)[::-1]  # noqa: E731
    assert opponents.orders(papers, "storm", 1000, unlikely)["both"] == ordered["MiniLM"]  # 0 each
    head, _, *lines = opponents.table(papers, asked, 1000, likely).splitlines()
    names = [line.split(" | ")[0] for line in lines]
    assert names == ["| BM25", "| MiniLM", "| likelihood", "| both"]
    assert all(line.count("|") == head.count("|") for line in lines)


def test_k_is_chosen_on_other_pages() -> None:
    row = dict.fromkeys((f"k={k}" for k in opponents.KS), 0.0)
    first, second = row | {"k=1": 1.0, "k=2": 0.4}, row | {"k=2": 1.0, "k=1": 0.3}
    assert opponents.on_other_pages(["a", "b"], [first, second]) == pytest.approx((0.4 + 0.3) / 2)
    assert opponents.on_other_pages(["a", "a"], [first, second]) is None
