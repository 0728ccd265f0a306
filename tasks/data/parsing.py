"""Text of web pages and PDFs, read in a child process with limits of CPU time and memory.

A few kilobytes of either can cost their parser hours. One child reads all files of a folder, a new
one those after a file that ended it. `python -m tasks.data.parsing` is the child: for each line
of its input, it writes one with the text, or with the reason why there is none and a remedy.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path

from tasks.data.rows import RowFault

_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?([\w-]+)", re.I)
CPU_S = 60
"""CPU seconds for one file."""
MEMORY_MB = 1000


class Parser:
    """Reads files in a child, which ends with this object."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def text(self, path: Path, max_chars: int) -> str:
        """Text of a file; that of a PDF ends soon after `max_chars`.

        Raises:
            RowFault: it cannot be read, or costs too much.
        """
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._end = weakref.finalize(self, _kill, self._child)
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        asked = json.dumps([str(path), max_chars, CPU_S, MEMORY_MB])
        with suppress(BrokenPipeError):
            child.stdin.write(f"{asked}\n".encode())
            child.stdin.flush()
        answer = child.stdout.readline()
        if not answer.endswith(b"\n"):
            self._end()
            self._child = None
            raise RowFault(
                f"reading it takes more than {CPU_S} s of a processor or {MEMORY_MB} MB",
                "print it into a new PDF, save it as text, or leave it out",
            )
        text, *fault = json.loads(answer)
        if fault:
            raise RowFault(*fault)
        return str(text)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with child:
        child.kill()


def read_text(path: Path, declared: bool = False) -> str:
    """Text of a file in UTF-8, in UTF-16 with a byte order mark, or as a web page declares.

    Raises:
        RowFault: it isn't text.
    """
    data, charset = path.read_bytes(), "UTF-8"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        charset = "UTF-16"
    elif (
        declared
        and not data.startswith(b"\xef\xbb\xbf")
        and (said := _CHARSET.search(data, 0, 1024))
    ):
        charset = said[1].decode().lower()
        charset = "cp1252" if charset in ("iso-8859-1", "latin1", "us-ascii") else charset
    try:
        text = data.decode(charset).removeprefix("\ufeff")
        text.encode()  # some codecs make lone surrogates
    except (UnicodeError, LookupError) as error:
        at = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else "text"
        raise RowFault(f"its {at} is not valid {charset}", "save it as UTF-8") from None
    if "\0" in text:
        raise RowFault("it contains NUL characters", "save it as UTF-8 text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _pdf(path: Path, max_chars: int) -> str:
    """Text of the pages, joined by blank lines; reading stops soon after `max_chars`."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # errors are reported below
    pages: list[str] = []
    try:
        with PdfReader(path) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                raise RowFault("it is encrypted", "save it without a password")
            for page in reader.pages:
                pages.append(page.extract_text())
                if sum(map(len, pages)) > max_chars:
                    break
    except (RowFault, OSError, MemoryError):
        raise
    except (FileNotDecryptedError, DependencyError):
        raise RowFault("it is encrypted", "save it without a password") from None
    except Exception as error:  # a broken file can raise anything in the parser
        reason = f"it is not a complete PDF ({type(error).__name__})"
        raise RowFault(reason, "save it again") from None
    text = "\n\n".join(pages).encode("utf-8", "replace").decode().replace("\0", " ")
    if not text.strip():
        reason = f"none of its {len(pages)} pages contains text, perhaps only scans"
        raise RowFault(reason, "run OCR over it and save the result")
    return text


_HIDDEN = {"script", "style", "template", "noscript", "svg", "head", "select", "button"}
_INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "dfn", "em", "font", "i", "img"),
    *("ins", "del", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strong", "sub"),
    *("sup", "time", "tt", "u", "var", "wbr"),
}
"""Elements within a line; any other starts and ends a block."""
_INDENTED = "\n    "
_STARTS = {"pre": f"\n{_INDENTED}", **{f"h{n}": f"\n\n{'#' * n} " for n in range(1, 7)}}
_BREAKS = {"br": "\n", "tr": "\n", "td": " ", "th": " "}


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
            self.parts.append(_BREAKS.get(tag) or _STARTS.get(tag, "\n\n"))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        if tag not in _INLINE:
            self.parts.append(_BREAKS.get(tag, "\n\n"))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
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
    cleaned = [
        line.rstrip()
        if line.startswith(_INDENTED[1:])
        else re.sub(r"[ \t\u00a0]+", " ", line).strip()
        for line in "".join(reader.parts).splitlines()
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(cleaned)).strip("\n")


def _answer(name: str, max_chars: int, cpu_s: int, memory_mb: int) -> tuple[str, ...]:
    spent = int(time.process_time()) + cpu_s + 1
    for kind, most in ((resource.RLIMIT_CPU, spent), (resource.RLIMIT_AS, memory_mb << 20)):
        with suppress(OSError, ValueError):  # a lower limit holds, or the system knows none
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    path = Path(name)
    try:
        pdf = path.suffix.lower() == ".pdf"
        return (_pdf(path, max_chars) if pdf else text_of(read_text(path, declared=True)),)
    except RowFault as error:
        return "", str(error), error.remedy
    except OSError as error:
        return "", f"it cannot be read ({error.strerror})", "check its permissions"


def _main() -> None:
    """Answer until the input ends, or a limit ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    with suppress(MemoryError):
        for line in sys.stdin:
            sys.stdout.write(json.dumps(_answer(*json.loads(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _main()
