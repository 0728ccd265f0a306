"""A folder of documents as papers: kinds, encodings, broken PDFs, and what lies outside."""

import json
import os
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.own_problems import read_own
from matplotlib import rc_context
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

from env.errors import SourceError
from tasks.asking import read_documents
from tasks.config.params import Params
from tasks.data import parsing
from tasks.data.documents import Documents
from tasks.data.rows import Found, Rejected


@cache
def pdf(*pages: str) -> bytes:
    """A PDF with one line of text on each page."""
    out = BytesIO()
    with rc_context({"pdf.use14corefonts": True}), PdfPages(out) as book:
        for page in pages:
            figure = Figure()
            figure.text(0, 0.5, page)
            book.savefig(figure)
    return out.getvalue()


def slow() -> bytes:
    """A PDF of a few kilobytes, of which one page takes five seconds."""
    writer, out = PdfWriter(BytesIO(pdf("A page."))), BytesIO()
    content = DecodedStreamObject()
    content.set_data(b"BT (a) Tj ET " * 200_000)
    writer.pages[0][NameObject("/Contents")] = content.flate_encode()
    writer.write(out)
    return out.getvalue()


def encrypted(password: str) -> bytes:
    writer, out = PdfWriter(BytesIO(pdf("Nobody reads this."))), BytesIO()
    writer.encrypt(password, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "docs"
    (place / "deep").mkdir(parents=True)
    (place / "a.md").write_text("# The first\n\nAlpha scores 42 points in all.\n")
    (place / "deep/b.txt").write_bytes(b"\xef\xbb\xbfBeta scores 43 points\r\nin all.\r\n")
    (place / "c.rst").write_text("=====\nThird\n=====\n\nGamma scores 44 points in all.\n")
    (place / "d.pdf").write_bytes(pdf("Delta scores 45 points in all.", "A second page."))
    (place / "e.png").write_bytes(b"\x89PNG")
    (place / ".hidden.md").write_text("hidden")
    (place / ".git").mkdir()
    (place / ".git/f.md").write_text("hidden")
    return place


def documents(folder: Path) -> Documents:
    return Documents(folder, max_chars=2000)


def read(folder: Path, rows: list[dict[str, Any]]) -> Found:
    path = folder.parent / "problems.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return read_own(path=path, documents=folder)


def question(quote: str, document: str, **more: Any) -> dict[str, Any]:
    evidence = [{"document": document, "quote": quote}]
    return {"question": f"{quote[:5]}?", "evidence": evidence, **more}


def test_each_kind_becomes_a_paper(folder: Path) -> None:
    papers = documents(folder).papers()
    assert [(paper.paper_id, paper.title) for paper in papers] == [
        ("a.md", "The first"),
        ("c.rst", "Third"),
        ("d.pdf", "d"),
        ("deep/b.txt", "Beta scores 43 points"),
    ]
    texts = {paper.paper_id: paper.text for paper in papers}
    assert texts["deep/b.txt"] == "Beta scores 43 points\nin all.\n"
    assert texts["d.pdf"] == "Delta scores 45 points in all.\n\nA second page."


def test_documents_that_cannot_be_read_cost_only_the_rows_that_name_them(folder, monkeypatch):
    monkeypatch.setattr("tasks.data.documents.MAX_MB", 1)
    broken = {
        "encrypted.pdf": (encrypted("secret"), "encrypted"),
        "blank.pdf": (pdf(""), "none of its 1 pages contains text"),
        "web page.pdf": (b"<html>not found</html>", "not a complete PDF"),
        "empty.md": (b"", "no text"),
        "broken.html": (b"<p>Text.</p><![<!", "not HTML"),
        "latin.txt": ("für".encode("latin-1"), "not valid UTF-8"),
        "zero.txt": (b"a\0b", "NUL"),
        "long.txt": (b"x" * 2001, "2,001 characters"),
        "large.txt": (b"x" * 1_000_001, "MB, more than 1"),
        "long.pdf": (pdf(*["words and words " * 20] * 20), "characters or more"),
        "x.docx": (b"PK", ".docx is not a supported format"),
        "x": (b"text", "without extension"),
        ".x.md": (b"text", "hidden"),
    }
    rows = [question("Alpha scores 42 points in all.", "a.md", documents=["a.md", "c.rst"])]
    for name, (content, _) in broken.items():
        (folder / name).write_bytes(content)
        rows.append(question("Something stands in it.", name, question=f"What does {name} say?"))
    rows.append(question("Gamma scores 44 points in all.", "c.rst"))
    found = read(folder, rows)
    assert len(found.problems) == 2
    for number, (_, reason) in enumerate(broken.values()):
        fault = found.rejected[number]
        assert (fault.row, fault.field) == (f"problems.jsonl:{number + 2}", "evidence[0]")
        assert reason in fault.reason
        assert fault.remedy
    assert len(found.rejected) == len(broken)


OUTSIDE = ["../secret.md", "/etc/passwd.txt", "link.md", "linked/secret.md", "private.md"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_the_folder_is_read(folder: Path, name: str) -> None:
    secret = folder.parent / "secret.md"
    secret.write_text("secret")
    (folder / "link.md").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    beside = folder.with_name(f"{folder.name}-private.md")
    beside.write_text("secret")
    (folder / "private.md").symlink_to(beside)
    found = documents(folder).get(name)
    assert isinstance(found, Rejected)
    assert "outside the folder" in found.reason
    assert "linked/secret.md" not in documents(folder).names()


def test_folders_that_are_not_searched_are_told(folder, monkeypatch):
    (folder / "deep/aside").symlink_to(folder.parent)
    (folder / "locked").mkdir()
    (folder / "README").write_text("Text.")
    scan = os.scandir

    def scandir(place: str) -> Any:
        if Path(place).name == "locked":  # root may read every folder
            raise PermissionError(13, "Permission denied", place)
        return scan(place)

    monkeypatch.setattr(os, "scandir", scandir)
    said = "".join(f"{one.row} {one.reason}" for one in documents(folder).closed)
    assert f"{folder}/locked it cannot be read (Permission denied)" in said
    told = "\n".join(read_documents(folder, Params())[1])
    assert f"{folder}/deep/aside: it cannot be read (linked folder); copy it" in told
    assert set(told.rpartition(" formats: ")[2].split(", ")) == {".png (1)", "none (1)"}


def test_a_file_is_read_as_it_says(folder: Path) -> None:
    kinds = {
        "a.log": "at 9 für".encode(),
        "a.csv": "x;é".encode("utf-16"),
        "b.markdown": b"\xfe\xff" + "# für".encode("utf-16-be"),
        "a.html": '<meta charset="ISO-8859-1"><p>für \x80'.encode("latin-1"),
        "b.htm": "<?xml version='1.0' encoding='koi8-r'?><p>Да".encode("koi8-r"),
        "c.html": '\ufeff<meta charset="koi8-r"><p>für'.encode(),
        "d.html": b"<meta http-equiv=a content='text/html; charset=ansi-9'><p>fur",
    }
    for name, content in kinds.items():
        (folder / name).write_bytes(content)
    texts = [paper.text for paper in documents(folder).papers(kinds)]
    assert texts == ["at 9 für", "x;é", "# für", "für €", "Да", "für"]
    assert "not valid ansi-9" in str(documents(folder).get("d.html"))


def test_what_is_no_plain_file_is_told(folder: Path) -> None:
    (folder / "circle.md").symlink_to("circle.md")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")  # reading it would wait for ever
    (folder / os.fsdecode(b"n\xffme.md")).write_text("A name that is no text.")
    left_out = read(folder, [question("Alpha scores 42 points in all.", "a.md")]).left_out
    assert [Path(fault.row).name for fault in left_out] == ["circle.md", "n\\udcffme.md", "pipe.md"]
    assert left_out[-1].reason == "it is not a regular file"
    found = documents(folder).get("folder.md")
    assert isinstance(found, Rejected)
    assert found.reason == "it is not a regular file"


def test_a_wrong_parent_folder_is_told_and_hides_no_wrong_quote(folder: Path) -> None:
    quoted = question("Alpha scores 43 points in all.", "a.md")
    wrong = (f"{folder.name}/a.md", "x" * 300)
    found = read(folder, [{**quoted, "documents": ["a.md", name]} for name in wrong])
    assert [fault.field for fault in found.rejected] == ["documents[1]", "evidence[0].quote"] * 2
    assert found.rejected[0].reason.endswith(f"it is not in {folder}")
    assert found.rejected[0].remedy.endswith(f"that holds {folder.name}: {folder.parent}")


def test_no_folder_and_an_empty_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"folder does not exist.*prepare\.files\.documents"):
        documents(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="contains no readable document"):
        read(tmp_path / "empty", [question("Alpha scores 42 points.", "a.md")])


def test_files_that_cost_too_much_are_faults_and_the_others_are_read(folder, monkeypatch):
    hostile = {
        "1.html": b"<p>Text.</p>" + b"<a " * 60_000,  # each is read to the end of the page
        "2.html": b"<p>" + b"&amp;" * 4_000_000,
        "slow.pdf": slow(),
    }
    for name, content in hostile.items():
        (folder / name).write_bytes(content)
    (folder / "3.html").write_text("<h1>Kind</h1><p>Epsilon scores 46 points.")
    monkeypatch.setattr(parsing, "CPU_S", 1)
    monkeypatch.setattr(parsing, "MEMORY_MB", 120)
    read = Documents(folder, max_chars=2000)
    for name in hostile:
        assert "reading it takes more than 1 s of a processor or 120 MB" in str(read.get(name))
    assert [paper.text for paper in read.papers(["3.html", "d.pdf"])] == [
        "# Kind\n\nEpsilon scores 46 points.",
        "Delta scores 45 points in all.\n\nA second page.",
    ]


def test_one_child_reads_a_folder_and_ends_with_it(folder: Path) -> None:
    for number in range(9):
        (folder / f"{number}.html").write_text(f"<p>Page {number}.")
    before, read = set(psutil.Process().children()), documents(folder)
    assert len(read.papers()) == len(read.names()) > 9
    (child,) = set(psutil.Process().children()) - before
    del read
    assert not child.is_running()


def test_a_name_is_found_in_either_form_of_its_letters(folder: Path) -> None:
    (folder / "U\u0308bung.md").write_text("Epsilon scores 46 points in all.")
    found = read(folder, [question("Epsilon scores 46", "\u00dcbung.md")])
    assert [one.evidence[0].spans[0].paper_id for one in found.problems] == ["\u00dcbung.md"]
    (folder / "\u00dcbung.md").write_text("Another text.")
    assert "another form" in documents(folder).closed[0].reason
