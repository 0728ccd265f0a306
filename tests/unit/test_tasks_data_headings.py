"""Questions of headings: what is one, what answers it, and which split it is in."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.own_problems import read_own

from env.errors import SourceError
from tasks.data.headings import FORMS, read
from tasks.data.parsing import text_of
from tasks.data.rows import Found
from tasks.data.settings import SplitSettings
from tasks.data.split import leaks

PROSE = "The {} is kept in the cellar, where nobody has looked for it since the war ended in May."


def page(*subjects: str) -> str:
    """A page of Markdown with a section about each subject."""
    return "\n\n".join(
        f"## Where the {s} is\n\n{PROSE.format(s)}\n\n    code({s})" for s in subjects
    )


def found(folder: Path, **files: object) -> Found:
    """What the source `files` makes of the folder's headings."""
    return read_own(headings=folder, **{"path": None, **files})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty pages with two headings each, and one that all have."""
    manual = tmp_path / "manual"
    manual.mkdir()
    for number in range(40):
        also = "\n\n## See also here\n\n" + "Nothing. " * 9
        (manual / f"page{number}.md").write_text(page(f"lamp{number}", f"chair{number}") + also)
    return manual


def test_a_heading_asks_and_the_prose_of_its_section_answers(folder: Path) -> None:
    result = found(folder)
    assert not result.rejected
    assert len(result.problems) == 80  # the heading of every page asks nothing
    assert {re.sub("Where.* is", "{}", one.question) for one in result.problems} == {*FORMS}
    one = next(p for p in result.problems if "Where the chair7 is" in p.question)
    assert [span.text for fact in one.evidence for span in fact.spans] == [PROSE.format("chair7")]
    assert one.gold_papers == {"page7.md"}
    assert not any("Where the" in text for text in one.texts.values())


def test_headings_that_ask_for_nothing(folder: Path) -> None:
    (folder / "page8.md").write_text(page("chair8"))  # most of its page
    vague = page("desk", "stool").replace("## Where the desk is", "## Some other remarks")
    # Prose that touches code is a part of a longer passage.
    (folder / "page7.md").write_text(vague.replace("May.\n\n    code", "May.\n    code"))
    (one,) = (p for p in found(folder).problems if p.gold_papers & {"page7.md", "page8.md"})
    assert "stool" in one.question


def test_no_document_is_in_two_splits(folder: Path) -> None:
    problems = found(folder).problems
    papers: dict[str, set[str]] = {}
    for problem in problems:
        papers.setdefault(problem.split, set()).update(problem.texts)
    assert set(papers) == {"train", "validation", "test"}
    assert sum(map(len, papers.values())) == 40
    assert leaks(problems, SplitSettings()) == []


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_questions_of_people_are_the_test_and_nothing_else_is(folder: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.mkdir()
    rows = []
    for name in ("a", "b"):
        (asked / f"{name}.txt").write_text(f"Somebody called {name} lost the ring in the garden.")
        quote = {"document": f"{name}.txt", "quote": f"Somebody called {name} lost the ring"}
        rows.append({"question": f"Who lost it, {name}?", "evidence": [quote], "split": "train"})
    result = found(folder, path=write_rows(tmp_path / "asked.jsonl", *rows), documents=asked)
    tested = [problem for problem in result.problems if problem.split == "test"]
    assert [problem.question for problem in tested] == ["Who lost it, a?", "Who lost it, b?"]
    assert len({problem.collection_id for problem in tested}) == 2  # one for each document
    assert len(tested[0].papers) == 2


def test_one_folder_trains_on_what_no_question_quotes(folder: Path, tmp_path: Path) -> None:
    quote = {"document": "page7.md", "quote": PROSE.format("chair7")}
    other = {"document": "page9.md", "quote": PROSE.format("lamp9")}
    rows = [{"question": f"Where can I sit, {n}?", "evidence": [quote, other]} for n in "ab"]
    edited = (folder / "page7.md").read_text().replace("    code(chair7)", "")
    (folder / "edited.md").write_text(edited)  # it would give the answer away
    (folder / "copy.md").write_text((folder / "page3.md").read_text())
    (folder / "empty.md").write_text("")
    result = found(folder, path=write_rows(tmp_path / "asked.jsonl", *rows), documents=folder)
    assert [fault.row for fault in result.left_out] == [str(folder / "empty.md")]  # once
    tested = [problem for problem in result.problems if problem.split == "test"]
    assert [sorted(problem.texts) for problem in tested] == [["page7.md", "page9.md"]] * 2
    others = [problem for problem in result.problems if problem.split != "test"]
    assert len(others) == 76  # the headings of the other 38 pages
    assert not result.rejected
    assert leaks(result.problems, SplitSettings()) == []


def test_a_folder_whose_documents_are_all_quoted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.md").write_text(page("lamp"))
    row = {"question": "Where?", "evidence": [{"document": "all.md", "quote": PROSE[:40]}]}
    asked = write_rows(tmp_path / "asked.jsonl", row)
    with pytest.raises(SourceError, match="no document that no question quotes"):
        found(tmp_path, path=asked, documents=tmp_path)


@pytest.mark.parametrize(("pages", "splits"), [("ab", 2), ("abc", 3)])
@pytest.mark.parametrize("vague", ["", "x", "y", "z"])
def test_few_documents_leave_no_split_empty(tmp_path, pages, splits, vague):
    for name in pages:
        (tmp_path / f"{name}.md").write_text(page(f"lamp {name}", f"chair {name}"))
    for name in vague:  # its headings ask nothing, so it's in no split
        text = re.sub("## .*", "## Some other remarks", page("desk", "stool"))
        (tmp_path / f"{name}.md").write_text(text)
    shares = SplitSettings(validation=0.001, test=0.001)
    made = read_own(splits=shares, headings=tmp_path, path=None).problems
    assert len({problem.split for problem in made}) == splits


def test_headings_are_marked_or_underlined_and_never_code() -> None:
    text = "Title\n=====\n\nText.\n\n```\n# no heading\n```\n\n# 3.1. A part¶ #\n\nMore.\n"
    stripped, sections = read(text)
    assert [one.heading for one in sections] == ["Title", "A part"]
    assert stripped == "Text.\n\n```\n# no heading\n```\n\nMore."


def test_a_web_page_has_headings_and_paragraphs() -> None:
    html = "<h1>The <b>title</b></h1><p>One<br>two</p>"
    html += "<pre>if x:\n    <b>y</b></pre><ul><li>a<li>b</ul>"
    assert text_of(html) == "# The title\n\nOne\ntwo\n\n    if x:\n        y\n\na\n\nb"


def test_a_folder_without_headings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("long " * 2000)
    with pytest.raises(SourceError, match=r"no readable document .*the limit is 2,000"):
        found(tmp_path)
    (tmp_path / "a.txt").write_text("Just text, and no heading above it at all, which is a pity.")
    with pytest.raises(SourceError, match=r"no document has a heading.*prepare\.files\.headings"):
        found(tmp_path)


def test_evidence_is_a_slice_even_where_code_stands_between_short_paragraphs() -> None:
    prose = "The bilge pump runs for a minute after each rain that lasts."
    text = f"# Bilge pump runs\n\nFor instance:\n\n    pump.run()\n\n{prose}\n\n## Next part\n"
    assert [one.prose for one in read(text)[1]] == [(prose,), ()]
