"""The FAQ example, on pages of its own: what is collected."""

from __future__ import annotations

import json
from pathlib import Path

from agent.evaluation.statistics import Interval
from env.problems.schema import Fact, Paper, Problem, Span
from examples.faq.collect import collect
from examples.faq.sizes import draw, grown, table
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


def test_headings_become_questions_and_rows_are_in_the_format_of_own_files(tmp_path: Path) -> None:
    pages = []
    for name, html in (("tower", SPHINX), ("works-bridge", ASCIIDOC)):
        pages.append(tmp_path / f"{name}.html")
        pages[-1].write_text(html)
    folder = tmp_path / "faq"
    assert collect("works", pages, folder) == 2
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
    path, documents = str(folder / "works.jsonl"), str(folder / "documents")
    found = read_problem_rows(config.resolve(), path, documents).found
    assert (len(found.problems), found.rejected) == (2, [])


def test_a_collection_grows_by_its_own_pages_first() -> None:
    def page(name: str, chars: int) -> Paper:
        return Paper(paper_id=name, title=name, abstract="", text=name[0] * chars)

    span = Span(paper_id="gold", start=0, end=50, text="g" * 50)
    problem = Problem(
        problem_id="q", collection_id="c", split="test", difficulty="easy", tier="singleton",
        question="How?", papers=(page("other", 200), page("gold", 100)),
        evidence=(Fact(fact_id="f", spans=(span,)),),
    )  # fmt: skip
    pages = [page("manual 1", 400), page("manual 2", 500)]
    names = {
        chars: [paper.paper_id for paper in grown(problem, pages, chars).papers]
        for chars in (0, 300, 700, 10_000)
    }
    assert names == {
        0: ["gold"],
        300: ["gold", "other"],
        700: ["gold", "other", "manual 1"],
        10_000: ["gold", "other", "manual 1", "manual 2"],
    }


def test_sizes_are_a_table_and_a_figure(tmp_path: Path) -> None:
    f1 = {"tree": Interval(0.5, 0.4, 0.6, 9), "search": Interval(0.4, 0.3, 0.5, 9)}
    rows = [(chars, f1, 900.4, {"tree": 2.0}) for chars in (2e4, 5e6)]
    head, _, small, _ = table(rows).splitlines()
    assert head.endswith("| tree | search | tokens | seconds, tree |")
    assert small == "| 20,000 | 0.500 [0.400, 0.600] | 0.400 [0.300, 0.500] | 900 | 2.00 |"
    draw(rows, tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").stat().st_size > 10_000
