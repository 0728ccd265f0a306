"""Visible text of a web page, without markup.

Blocks become paragraphs, headings those of Markdown, and preformatted text is indented by four
spaces. Scripts, styles and form controls are left out.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

from tasks.data.source import RowFault

_HIDDEN = {"script", "style", "template", "noscript", "svg", "head", "select", "button"}
_INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "dfn", "em", "font", "i", "img"),
    *("ins", "del", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strong", "sub"),
    *("sup", "time", "tt", "u", "var", "wbr"),
}
"""Elements within a line; any other starts and ends a block."""
_INDENTED = "\n    "
_BREAKS = {"pre": f"\n{_INDENTED}", "br": "\n", "tr": "\n", "td": " ", "th": " "}
_HEADINGS = {f"h{level}": f"\n\n{'#' * level} " for level in range(1, 7)}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden: list[str] = []
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag == "body":
            self._hidden.clear()  # a head that was not closed
        elif tag == "pre":
            self._verbatim += 1
        if tag not in _INLINE:
            self.parts.append(_BREAKS.get(tag) or _HEADINGS.get(tag, "\n\n"))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if tag not in _INLINE:
            self.parts.append("\n\n" if tag == "pre" else _BREAKS.get(tag, "\n\n"))

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        verbatim = data.replace("\n", _INDENTED)
        self.parts.append(verbatim if self._verbatim else re.sub(r"\s+", " ", data))


def text_of(page: str) -> str:
    """Visible text of a page, with a blank line between two blocks.

    Raises:
        RowFault: a declaration is broken.
    """
    reader = _Reader()
    try:
        reader.feed(page)
        reader.close()
    except AssertionError:  # of the standard library's parser
        raise RowFault("it is not HTML that can be read", "save it again") from None
    lines = "".join(reader.parts).splitlines()
    cleaned = [line.rstrip() if line.startswith(_INDENTED[1:]) else _close(line) for line in lines]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(cleaned)).strip("\n")


def _close(line: str) -> str:
    return re.sub(r"[ \t\u00a0]+", " ", line).strip()
