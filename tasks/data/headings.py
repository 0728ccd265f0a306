"""Questions without a label: the headings of a folder, each with what its section says.

A heading that is taken out of its document is a question of a kind, because the words that would
answer it by search alone are gone. Its section's paragraphs are the evidence. Nobody has to write
or check anything, so a folder is enough to train on; the questions of people are for the test.

Headings are those of Markdown (`## Heading`, or underlined), reStructuredText and web pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from env.errors import SourceError
from env.passages import passages
from env.problems.schema import SPLITS, Paper, Split
from env.ranking import rank
from tasks.data.documents import Documents
from tasks.data.rows import Draft, Place, ProblemBounds
from tasks.data.settings import SplitSettings
from tasks.data.texts import position, sentences

PROSE_CHARS = 40
"""Shorter paragraphs, such as "For example:", are no evidence."""
ANSWER_CHARS = (80, 2500)
"""Characters of a section's evidence: less says too little, more is a chapter."""
FORMS = (
    "{}",
    "What about {}?",
    "How does {} work?",
    "How do I use {}?",
    "Why {}?",
    "Is there {}?",
    "Can I use {}?",
    "What is “{}”?",
    "I don't understand {}. Is it needed?",
)
"""Questions made of a heading that isn't one. People's questions end with a question mark: a root
that has seen it in readers' prompts alone takes them for one, and replies yes or no. Questions that
yes or no would answer are among them for the same reason, and quotation marks because a root has to
copy them into its code."""
NEIGHBOURS = 8
"""Documents of a problem: the heading's own, and those that follow it in the folder."""
FOUND = 2
"""A heading names its subject if BM25 finds its section among so many passages of the document.

People's questions do. The other headings, such as "What else to know", are nearly half of all, and
from them a reader learns that what ranks first seldom answers."""

_MARKED = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)")
_RULE = re.compile(r"([=\-~^\"'*+#.`:_])\1{2,}[ \t]*")
"""A line below or above a heading, or between two parts of a page."""
_FENCE = re.compile(r" {0,3}(```|~~~)")
_NOT_PROSE = ("    ", "\t", "|")
"""Beginnings of lines of code and of tables."""
_NUMBER = re.compile(r"^\d{1,3}(\.\d+)*\.?\s+(?=\w)")
_WORD = re.compile(r"[^\W\d_]{2,}")


class Section(NamedTuple):
    """A heading, and the paragraphs of prose up to the next one."""

    heading: str
    prose: tuple[str, ...]


def read(text: str) -> tuple[str, list[Section]]:
    """A document without its headings, and its sections."""
    body, sections = list[str](), list[Section]()
    heading, prose = "", list[str]()

    def end() -> None:
        paragraphs = passages("\n".join(prose), ANSWER_CHARS[1], 1)  # joined, they'd bridge code
        long = tuple(one for one in paragraphs if len(one) >= PROSE_CHARS)
        sections.append(Section(heading, long))
        prose.clear()

    fenced, lines = False, text.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        fence = bool(_FENCE.match(line))
        fenced ^= fence
        if fenced or fence:
            body.append(line)
            prose.append("")
        elif title := _heading(line, below):
            end()
            heading = _NUMBER.sub("", title).rstrip(" ¶")  # a link that Sphinx adds
            body.append("")
        elif not _RULE.fullmatch(line):
            body.append(line)
            prose.append("" if line.startswith(_NOT_PROSE) else line)
    end()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(body)).strip("\n"), sections[1:]


def _heading(line: str, below: str) -> str | None:
    """The heading that a line is, by its marks or by the line below it."""
    if marked := _MARKED.fullmatch(line.rstrip()):
        return re.sub(r"[ \t]#+$", "", marked[1]).rstrip()
    if not line[:1].strip() or line.startswith(("|", "- ", "* ")) or _RULE.fullmatch(line):
        return None
    underlined = _RULE.fullmatch(below) and len(below.rstrip()) >= len(line.rstrip())
    return line.strip() if underlined else None


def drafts(
    documents: Documents, splits: SplitSettings, bounds: ProblemBounds, test: bool, quoted: Set[str]
) -> list[Draft]:
    """A problem for each heading; its documents are all in the same split.

    Args:
        documents: the folder.
        splits: shares and seed.
        bounds: `max_papers`.
        test: whether headings make the test, too.
        quoted: texts of documents that questions of the test quote, so they aren't trained on.

    Raises:
        SourceError: no heading asks for what its section says.
    """
    papers: list[Paper] = []
    sections: dict[str, list[Section]] = {}
    taken = set(quoted)
    asked = [own for text in quoted if (own := sentences(text))]
    for paper in documents.papers():
        # An edited copy of a document of the test would give its answers away.
        own, least = sentences(paper.text), splits.similar_papers
        alike = own and any(len(own & one) >= least * min(len(own), len(one)) for one in asked)
        if paper.text not in taken and not alike:
            text, sections[paper.paper_id] = read(paper.text)
            if text:
                papers.append(paper.model_copy(update={"text": text}))
        taken.add(paper.text)
    # The same heading in two documents has half of its evidence in each. Sentences that many
    # sections share, about versions for instance, answer none of them.
    every = [one for paper in papers for one in sections[paper.paper_id]]
    seen = Counter(text for one in every for text in {_key(one.heading), *one.prose})
    asking = {
        paper.paper_id: [
            (number, one)
            for number, one in enumerate(sections[paper.paper_id], 1)
            if all(seen[text] == 1 for text in (_key(one.heading), *one.prose))
            and _asks(one, paper.text)
        ]
        for paper in papers
    }
    chosen = _splits([name for name, some in asking.items() if some], splits, test)
    made = []
    for split in SPLITS:
        same = [paper for paper in papers if chosen.get(paper.paper_id, "train") == split]
        for place, paper in enumerate(same):
            around = [*same[place:], *same[:place]][: min(NEIGHBOURS, bounds.max_papers)]
            for number, section in asking[paper.paper_id]:
                row, asks = f"{paper.paper_id}#{number}", section.heading
                if not asks.endswith("?"):
                    asks = FORMS[int(position(row) * len(FORMS))].format(asks)
                facts = [[Place("section", paper.paper_id, quote)] for quote in section.prose]
                made.append(Draft(row, asks, around, facts, "documents", split=split))
    if not made:
        of = "no document that no question quotes" if quoted else "no document"
        raise SourceError(
            f"{documents.folder}: {of} has a heading of two words and more that BM25 finds "
            f"{ANSWER_CHARS[0]} to {ANSWER_CHARS[1]:,} characters of prose of its own section by, "
            f"among the first {FOUND} passages. The prose may be at most half of the document. "
            "Headings are those of Markdown, reStructuredText and HTML. Add documents, let "
            "headings name their subject, or change prepare.files.headings."
        )
    return made


def _asks(section: Section, text: str) -> bool:
    """Whether a heading says something, and asks for what its section says."""
    least, most = ANSWER_CHARS
    size = sum(map(len, section.prose))
    # A child must omit half of what it's given, so half of a page is no evidence.
    if len(_WORD.findall(section.heading)) < 2 or not least <= size <= min(most, len(text) / 2):
        return False
    # Where prose touches code, a passage is more than a paragraph of the section.
    best = rank(text, section.heading, FOUND)
    return any(found in one or one in found for _, found in best for one in section.prose)


def _key(heading: str) -> str:
    return " ".join(heading.casefold().split())


def _splits(names: Sequence[str], splits: SplitSettings, test: bool) -> dict[str, Split]:
    """Split of each document by a hash of its name; no split is empty if there are enough."""
    at = {name: position(f"{splits.seed}/{name}") for name in names}
    below = [
        sum(place < share for place in at.values())
        for share in (splits.validation, splits.validation + splits.test)
    ]
    validation = max(below[0], int(len(at) > 1))
    last = max(below[1], validation + int(len(at) > 2)) if test else validation
    order = sorted(at, key=lambda name: at[name])
    return {
        name: "validation" if place < validation else "test" if place < last else "train"
        for place, name in enumerate(order)
    }
