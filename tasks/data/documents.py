"""A folder of documents as papers: Markdown, text, reStructuredText, HTML and PDF.

Each file is read once. An unreadable file is reported with its name and the reason, and rejects
only the problems that name it.
"""

from __future__ import annotations

import os
from collections import Counter
from difflib import get_close_matches
from pathlib import Path

from env.errors import SourceError
from env.problems.schema import Paper
from tasks.data.parsing import Parser, read_text
from tasks.data.source import MAX_MB, Rejected, RowFault

TEXT = (".md", ".txt", ".rst")
READABLE = (*TEXT, ".html", ".htm", ".pdf")
_TITLE_CHARS = 200


class Documents:
    """Documents of one folder; a document's paper_id is its path within the folder.

    Args:
        folder: searched with its subfolders; hidden files and other formats are skipped.
        max_chars: limit of characters of one document.

    Raises:
        SourceError: the folder does not exist.
    """

    def __init__(
        self,
        folder: Path,
        max_chars: int,
    ) -> None:
        if not folder.is_dir():
            raise SourceError(
                f"{folder}: the folder does not exist. Correct prepare.files.documents."
            )
        self.folder = folder
        self._root = folder.resolve()
        self._max_chars = max_chars
        self._parser = Parser()
        self._read: dict[str, Paper | Rejected] = {}
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """Sorted names of all documents, unreadable ones included."""
        if self._names is None:
            self._names = sorted(name for name in self._walk() if _readable(name))
        return self._names

    def other_formats(self) -> Counter[str]:
        """Number of files of other formats by the end of their names."""
        return Counter(Path(name).suffix for name in self._walk() if not _readable(name))

    def _walk(self) -> list[str]:
        """Files that are not hidden."""
        names = []
        for place, folders, files in os.walk(self._root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            names += [
                Path(place, name).relative_to(self._root).as_posix()
                for name in files
                if not name.startswith(".")
            ]
        return names

    def within(self, folder: str) -> list[str]:
        """Documents of a subfolder; empty if it is not a folder."""
        inside = os.path.normpath(folder) + "/"
        return [name for name in self.names() if name.startswith(inside)]

    def get(self, name: str) -> Paper | Rejected:
        """Paper of a document, or the fault that makes it unreadable.

        Args:
            name: a path within the folder.
        """
        key = os.path.normpath(name)
        if key not in self._read:
            try:
                self._read[key] = self._paper(Path(key))
            except RowFault as error:
                self._read[key] = error.at(str(self.folder / key), "(document)")
        return self._read[key]

    def _paper(self, name: Path) -> Paper:
        path = self._root / name
        if name.is_absolute() or not _end(path).is_relative_to(self._root):
            raise RowFault(
                f"it is outside the folder {self.folder}",
                "copy it into the folder, or name its own folder",
            )
        if any(part.startswith(".") for part in name.parts):
            raise RowFault("it is hidden", "remove the leading dot from its name")
        if not os.path.exists(path):  # unlike that of Path, false where a name is too long
            if name.parts[0] == self._root.name:
                remedy = f"name the folder that holds {name.parts[0]}: {self._root.parent}"
                raise RowFault(f"it is not in {self.folder}", remedy)
            alike = get_close_matches(name.as_posix(), self.names(), n=1)
            meant = f"; did you mean {alike[0]!r}?" if alike else ""
            raise RowFault(f"it is not in {self.folder}{meant}", "correct the path or add the file")
        if not path.is_file():
            raise RowFault("it is not a regular file", "leave it out")
        if name.suffix.lower() not in READABLE:
            raise RowFault(
                f"{name.suffix or 'a file without extension'} is not a supported format",
                f"convert it to one of {', '.join(READABLE)}",
            )
        try:
            name.as_posix().encode()
            size = path.stat().st_size
            if size > MAX_MB * 1_000_000:
                raise RowFault(
                    f"it has {size / 1e6:.1f} MB, more than {MAX_MB}",
                    "split it",
                )
            if name.suffix.lower() in TEXT:
                text = read_text(path)
            else:
                text = self._parser.text(path, self._max_chars)
        except UnicodeEncodeError:
            raise RowFault("its name is not valid UTF-8", "rename it") from None
        except OSError as error:
            raise RowFault(
                f"it cannot be read ({error.strerror})", "check its permissions"
            ) from None
        if not text.strip():
            raise RowFault("it contains no text", "leave it out")
        if len(text) > self._max_chars:
            raise RowFault(
                f"it has {len(text):,} characters or more, the limit is {self._max_chars:,}",
                "split it",
            )
        return Paper(paper_id=name.as_posix(), title=_title(text, name), abstract="", text=text)


def _readable(name: str) -> bool:
    return Path(name).suffix.lower() in READABLE


def _end(path: Path) -> Path:
    """The path with all links resolved."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise RowFault("its links form a loop", "correct the link") from None


def _title(text: str, name: Path) -> str:
    """First line with a letter or digit; the file's name for a PDF."""
    if name.suffix.lower() == ".pdf":
        return name.stem
    lines = (line.strip("#=*-~ \t") for line in text.splitlines())
    return next((line for line in lines if any(map(str.isalnum, line))), name.stem)[:_TITLE_CHARS]
