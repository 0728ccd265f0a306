"""Text of web pages and PDFs, read in a child process with limits of CPU time and memory.

A few kilobytes of either can cost their parser hours. One child reads all files of a folder, a new
one those after a file that ended it. `python -m tasks.data.parsing` is the child: for each line
of its input, it writes one with the text, or with the reason why there is none and a remedy.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

from tasks.data.source import RowFault
from tasks.data.web import text_of

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


def read_text(path: Path) -> str:
    """Text of a file in UTF-8.

    Raises:
        RowFault: it isn't text.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RowFault(f"its byte {error.start} is not valid UTF-8", "save it as UTF-8") from None
    if "\0" in text:
        raise RowFault("it contains NUL characters", "save it as UTF-8 text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _pdf(path: Path, max_chars: int) -> str:
    """Text of the pages, joined by blank lines; reading stops soon after `max_chars`."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # errors are reported below
    pages: list[str] = []
    chars = 0
    try:
        with PdfReader(path) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                raise RowFault("it is encrypted", "save it without a password")
            for page in reader.pages:
                pages.append(page.extract_text())
                chars += len(pages[-1])
                if chars > max_chars:
                    break
    except (RowFault, OSError, MemoryError):
        raise
    except (FileNotDecryptedError, DependencyError):
        raise RowFault("it is encrypted", "save it without a password") from None
    except Exception as error:  # a broken file can raise anything in the parser
        raise RowFault(
            f"it is not a complete PDF ({type(error).__name__})", "save it again"
        ) from None
    text = "\n\n".join(pages).encode("utf-8", "replace").decode().replace("\0", " ")
    if not text.strip():
        raise RowFault(
            f"none of its {len(pages)} pages contains text, perhaps only scans"
            if pages
            else "it has no pages",
            "run OCR over it and save the result",
        )
    return text


def _answer(name: str, max_chars: int, cpu_s: int, memory_mb: int) -> tuple[str, ...]:
    spent = int(time.process_time()) + cpu_s + 1
    for kind, most in ((resource.RLIMIT_CPU, spent), (resource.RLIMIT_AS, memory_mb << 20)):
        with suppress(OSError, ValueError):  # a lower limit holds, or the system knows none
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    path = Path(name)
    try:
        pdf = path.suffix.lower() == ".pdf"
        return (_pdf(path, max_chars) if pdf else text_of(read_text(path)),)
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
