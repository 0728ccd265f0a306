"""A folder of documents as papers: Markdown, text, reStructuredText, HTML and PDF.

Each file is read once. One that cannot be read is told by its name with the reason, and costs
only the problems that name it. Neighbour: `files.py`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from env.errors import SourceError
from env.problems.schema import Paper
from env.problems.source import Rejected
from env.problems.web import text_of

TEXT = (".md", ".txt", ".rst")
WEB = (".html", ".htm")
READABLE = (*TEXT, *WEB, ".pdf")
_TITLE_CHARS = 200


class _Unreadable(Exception):
    """Why a document is no paper, and how to mend it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class Documents:
    """The documents of one folder; a document's paper_id is its path within the folder.

    Args:
        folder: searched with all its folders; hidden files and other kinds are passed over.
        max_chars: of one document.
        max_mb: of one file.

    Raises:
        SourceError: no such folder.
    """

    def __init__(self, folder: Path, max_chars: int, max_mb: int) -> None:
        if not folder.is_dir():
            raise SourceError(f"{folder}: no such folder (prepare.files.documents)")
        self.folder = folder
        self._root = folder.resolve()
        self._max_chars = max_chars
        self._max_mb = max_mb
        self._read: dict[str, Paper | Rejected] = {}
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """Every document of the folder, sorted; those that cannot be read are among them."""
        if self._names is None:
            self._names = sorted(self._walk())
        return self._names

    def _walk(self) -> list[str]:
        found = []
        for place, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [
                Path(place, name).relative_to(self._root).as_posix()
                for name in files
                if not name.startswith(".") and Path(name).suffix.lower() in READABLE
            ]
        return found

    def within(self, folder: str) -> list[str]:
        """Every document of a folder within the folder; none when it is no folder."""
        inside = os.path.normpath(folder) + "/"
        return [name for name in self.names() if name.startswith(inside)]

    def get(self, name: str) -> Paper | Rejected:
        """The paper of a document, or why it is none.

        Args:
            name: a path within the folder.
        """
        key = os.path.normpath(name)
        if key not in self._read:
            try:
                self._read[key] = self._paper(Path(key))
            except _Unreadable as error:
                self._read[key] = Rejected(
                    str(self.folder / key), "(document)", str(error), error.remedy
                )
        return self._read[key]

    def _paper(self, name: Path) -> Paper:
        path = self._root / name
        if name.is_absolute() or not _end(path).is_relative_to(self._root):
            raise _Unreadable(
                f"it lies outside the folder {self.folder}",
                "copy it into the folder, or name that folder",
            )
        if any(part.startswith(".") for part in name.parts):
            raise _Unreadable("it is hidden", "name it without a dot in front")
        if name.suffix.lower() not in READABLE:
            raise _Unreadable(
                f"{name.suffix or 'a file without ending'} is no kind of document that can be read",
                f"convert it to one of {', '.join(READABLE)}",
            )
        if not path.is_file():
            raise _Unreadable(
                f"there is no such file in {self.folder}", "mend the path or add the file"
            )
        try:
            name.as_posix().encode()
            size = path.stat().st_size
            if size > self._max_mb * 1_000_000:
                raise _Unreadable(
                    f"it has {size / 1e6:.1f} MB, more than {self._max_mb}",
                    "split it, or raise prepare.files.max_mb",
                )
            text = _pdf(path, self._max_chars) if name.suffix.lower() == ".pdf" else _text(path)
            if name.suffix.lower() in WEB:
                text = text_of(text)
        except UnicodeEncodeError:
            raise _Unreadable("its name is no UTF-8", "rename it") from None
        except OSError as error:
            raise _Unreadable(f"it cannot be read ({error.strerror})", "check its rights") from None
        if not text.strip():
            raise _Unreadable("it holds no text", "leave it out")
        if len(text) > self._max_chars:
            raise _Unreadable(
                f"it has {len(text):,} characters or more, the limit is {self._max_chars:,}",
                "split it, or raise validate.max_text_chars",
            )
        return Paper(paper_id=name.as_posix(), title=_title(text, name), abstract="", text=text)


def _end(path: Path) -> Path:
    """Where all links lead."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise _Unreadable("its links lead in a circle", "mend the link") from None


def _title(text: str, name: Path) -> str:
    """The first line with words in it; of a PDF the file's name."""
    if name.suffix.lower() == ".pdf":
        return name.stem
    lines = (line.strip("#=*-~ \t") for line in text.splitlines())
    return next((line for line in lines if any(map(str.isalnum, line))), name.stem)[:_TITLE_CHARS]


def _text(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unreadable(f"byte {error.start} of it is no UTF-8", "save it as UTF-8") from None
    if "\0" in text:
        raise _Unreadable("it holds NUL characters", "save it as UTF-8 text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _pdf(path: Path, max_chars: int) -> str:
    """The pages' text, two line breaks between pages; no more than a page beyond `max_chars`."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what is wrong is said below
    pages: list[str] = []
    try:
        with PdfReader(path) as reader:
            if reader.is_encrypted and not reader.decrypt(""):
                raise _Unreadable("it is encrypted", "save it without a password")
            for page in reader.pages:
                pages.append(page.extract_text())
                if sum(map(len, pages)) > max_chars:
                    break
    except (_Unreadable, OSError):
        raise
    except (FileNotDecryptedError, DependencyError):
        raise _Unreadable("it is encrypted", "save it without a password") from None
    except Exception as error:  # what a broken file raises out of the parser is no closed list
        raise _Unreadable(f"it is no whole PDF ({type(error).__name__})", "save it anew") from None
    text = "\n\n".join(pages).encode("utf-8", "replace").decode().replace("\0", " ")
    if not text.strip():
        raise _Unreadable(
            f"none of its {len(pages)} pages holds text: pictures of pages?"
            if pages
            else "it has no pages",
            "run OCR over it and save the result",
        )
    return text
