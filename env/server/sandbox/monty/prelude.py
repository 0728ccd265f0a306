"""What a monty REPL knows beside `context`: Python text that the monty interpreter runs.

The reading functions are those of `../inside/reading.py`, word for word; before them stands what
they import and monty does not have. Sub-calls and FINAL are the host's, see `repl.py`.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

_READING = Path(__file__).resolve().parent.parent / "inside" / "reading.py"
_MISSING = (
    "from __future__ import annotations\n",
    "import difflib\n",
    "from collections.abc import Mapping\n",
)

NAMES = (
    "context",
    "search",
    "list_papers",
    "get_abstract",
    "get_paper_abstract",
    "extract",
    "extract_section",
    "FINAL_VAR",
)
"""What a cell may replace and finds again in the next one."""

LOOK = """
def _types(values, type=type):
    return {name: type(value).__name__ for name, value in values.items()}
"""
"""Run once, before a cell can have given `type` another meaning."""

_HEAD = '''
Mapping = dict


class _Difflib:
    """`get_close_matches` as the standard library's, for words."""

    def get_close_matches(self, word, possibilities, n, cutoff):
        scored = []
        for other in possibilities:
            least = cutoff * (len(word) + len(other)) / 2
            if min(len(word), len(other)) >= least and _common_letters(other, word) >= least:
                matched = _matched(other, word)
                if matched >= least:
                    scored.append((2 * matched / (len(word) + len(other)), other))
        return [other for score, other in sorted(scored, reverse=True)[:n]]


def _common_letters(first, second):
    return sum(min(first.count(letter), second.count(letter)) for letter in set(first))


def _matched(first, second):
    """Letters in the longest common run, and in what lies left and right of it, and so on."""
    size, start, other = 0, 0, 0
    for i in range(len(first)):
        for j in range(len(second)):
            k = 0
            while i + k < len(first) and j + k < len(second) and first[i + k] == second[j + k]:
                k += 1
            if k > size:
                size, start, other = k, i, j
    if not size:
        return 0
    left = _matched(first[:start], second[:other])
    return size + left + _matched(first[start + size :], second[other + size :])


difflib = _Difflib()
'''

_SCRIPT = """
def _make_reader():
{body}
    return Reader({window!r}, {quiet!r})


def FINAL_VAR(name):
    if isinstance(name, str):
        key = name.strip().strip("'\\"")
        if key.isidentifier():
            FINAL(eval(key))
    FINAL(name)


_reader = _make_reader()
search = _reader.search
list_papers = _reader.list_papers
get_abstract = _reader.get_abstract
get_paper_abstract = _reader.get_paper_abstract
extract = extract_section = _reader.extract
"""


def prelude(window: int, quiet: bool) -> str:
    """The text to run before the first cell, with the settings of `search`."""
    reading = _READING.read_text(encoding="utf-8")
    for line in _MISSING:
        reading = reading.replace(line, "", 1)
    body = textwrap.indent(_HEAD + reading, "    ")
    return _SCRIPT.format(body=body, window=window, quiet=quiet)
