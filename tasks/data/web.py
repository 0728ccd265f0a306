"""Visible text of a web page, without markup.

Blocks become lines. Scripts, styles and form controls are left out.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_HIDDEN = {"script", "style", "template", "noscript", "svg", "head", "select", "button"}
_INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "dfn", "em", "font", "i", "img"),
    *("ins", "del", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strong", "sub"),
    *("sup", "time", "tt", "u", "var", "wbr"),
}
"""Elements within a line; any other starts and ends a block."""


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
            self.parts.append(" " if tag in ("td", "th") else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if tag not in _INLINE:
            self.parts.append(" " if tag in ("td", "th") else "\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))


def text_of(page: str) -> str:
    """Visible text of a page: one line per block, no empty lines. Never raises."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    lines = (line.strip() for line in "".join(reader.parts).splitlines())
    return "\n".join(re.sub(r"[ \t\u00a0]+", " ", line) for line in lines if line)
