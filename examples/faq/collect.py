"""Collect real questions about real documents: the pages of two Debian packages.

`python -m examples.faq.collect` fills data/faq/ with documents/NAME/*.txt, the FAQ pages without
their headings, and NAME.jsonl, in the format of docs/own_data.md: each heading that was a question,
with the paragraphs of its answer as evidence. The other pages of Python's manual keep their
headings, in headings/*.md: `prepare.files.headings` makes questions to train on from them. It needs
apt and dpkg, and installs nothing. The texts stay under their licences (PSF, GPL-2).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

from tasks.data.headings import ANSWER_CHARS, PROSE_CHARS

TARGET = Path("data/faq")
SOURCES = {
    "python": ("python3.11-doc", "usr/share/doc/python3.11/html/faq/*.html"),
    "git": ("git-doc", "usr/share/doc/git-doc/gitfaq.html"),
}
"""Package and pages of each collection."""
MANUAL = "usr/share/doc/python3.11/html"
PARTS = ("howto", "library", "reference", "tutorial", "using")
"""Folders of the pages whose headings train; the FAQ is in another one."""

Section = tuple[str, list[tuple[str, bool]]]
"""A heading, and its blocks, each with whether it's prose."""


def sections(html: str) -> Iterator[Section]:
    """The headings of a page of Sphinx or AsciiDoc with what follows each, in order."""
    from bs4 import BeautifulSoup

    page = BeautifulSoup(html, "html.parser")
    for extra in page.select("nav, a.headerlink"):
        extra.decompose()
    heading, blocks = "", []
    for tag in page.select("[role=main] :is(h1, h2, h3, h4, p, pre), dt.hdlist1, dd p, dd pre"):
        text = tag.get_text() if tag.name == "pre" else " ".join(tag.get_text().split())
        if tag.name in ("p", "pre"):
            blocks += [(text.strip("\n"), tag.name == "p")] if text.strip() else []
        else:
            yield heading, blocks
            heading, blocks = text, []
    yield heading, blocks


def questions(name: str, document: str, parts: list[Section]) -> Iterator[dict[str, Any]]:
    """Rows of the headings that ask and have an answer of prose."""
    for heading, blocks in parts:
        quotes = [text for text, prose in blocks if prose and len(text) >= PROSE_CHARS]
        least, most = ANSWER_CHARS
        if heading.endswith("?") and least <= sum(map(len, quotes)) <= most:
            evidence = [{"document": document, "quote": quote} for quote in quotes]
            yield {"question": heading, "documents": [name], "evidence": evidence}


def collect(name: str, pages: list[Path], target: Path) -> int:
    """Write the documents and questions of a collection; return the number of questions."""
    folder = target / "documents" / name
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for page in pages:
        parts = list(sections(page.read_text(encoding="utf-8")))
        text = "\n\n".join(block for _, blocks in parts for block, _ in blocks)
        document = folder / f"{name}-{page.stem.removeprefix(name)}.txt"
        document.write_text(text + "\n", encoding="utf-8")
        rows += questions(name, f"{name}/{document.name}", parts)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (target / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return len(rows)


def markdown(parts: list[Section]) -> str:
    """A page as Markdown: headings, paragraphs and indented code."""
    blocks = []
    for heading, section in parts:
        blocks += [f"# {heading}"] if heading else []
        blocks += [text if prose else indent(text, "    ") for text, prose in section]
    return "\n\n".join(blocks) + "\n"


def unpack(package: str, folder: Path) -> None:
    """Download a package of Debian and unpack it, without installing it."""
    folder.mkdir()
    subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
    for archive in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, folder], check=True)


def main() -> None:
    """Collect from all packages."""
    parser = argparse.ArgumentParser(description="Collect questions and documents of FAQ pages.")
    parser.add_argument("--target", type=Path, default=TARGET)
    target = parser.parse_args().target
    with tempfile.TemporaryDirectory() as temporary:
        for name, (package, pattern) in SOURCES.items():
            root = Path(temporary) / name
            unpack(package, root)
            pages = [page for page in sorted(root.glob(pattern)) if page.stem != "index"]
            count = collect(name, pages, target)
            print(f"{target / name}.jsonl: {count} questions about {len(pages)} documents")
        folder = target / "headings"
        folder.mkdir(exist_ok=True)
        manual = [
            p for part in PARTS for p in (Path(temporary) / "python" / MANUAL / part).glob("*.html")
        ]
        for page in manual:
            text = markdown(list(sections(page.read_text(encoding="utf-8"))))
            (folder / f"{page.parent.name}-{page.stem}.md").write_text(text, encoding="utf-8")
        print(f"{folder}: {len(manual)} pages with headings")


if __name__ == "__main__":
    main()
