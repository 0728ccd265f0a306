"""A folder of documents as papers: Markdown, text, reStructuredText, CSV, logs, HTML and PDF.

Each file is read once. An unreadable file is reported with its name and the reason, and rejects
only the problems that name it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unicodedata import normalize

from env.errors import SourceError
from env.problems.schema import Paper
from tasks.data.parsing import Parser, read_text
from tasks.data.rows import Rejected, RowFault, did_you_mean

TEXT = (".md", ".markdown", ".txt", ".rst", ".log", ".csv")
READABLE = (*TEXT, ".html", ".htm", ".pdf")
MAX_MB = 64
"""Megabytes of one document, so that reading one does not fill the memory."""
_TITLE_CHARS = 200


def document_id(name: str) -> str:
    """A path within the folder as one string, whichever form of its letters a system writes."""
    return normalize("NFC", os.path.normpath(name))


class Documents:
    """Documents of one folder; a document's paper_id is its path within the folder.

    Args:
        folder: searched with its subfolders; hidden files and other formats are skipped.
        max_chars: limit of characters of one document.

    Raises:
        SourceError: the folder does not exist.
    """

    def __init__(self, folder: Path, max_chars: int) -> None:
        if not folder.is_dir():
            fix = "Name an existing one (--documents, prepare.files.documents or headings)."
            raise SourceError(f"{folder}: the folder does not exist. {fix}")
        self.folder = folder
        self._root = folder.resolve()
        self._max_chars = max_chars
        self._parser = Parser()
        self._read: dict[str, Paper | Rejected] = {}
        self.closed: list[Rejected] = []
        """Folders within it that are not searched."""
        files: list[str] = []
        for place, inside, names in os.walk(self._root, onerror=self._close):
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            for name in filter(os.path.islink, (os.path.join(place, one) for one in inside)):
                self._close(OSError(0, "linked folder", name), "copy it into the folder")
            paths = (Path(place, name) for name in names if not name.startswith("."))
            files += [path.relative_to(self._root).as_posix() for path in paths]
        self._files: dict[str, str] = {}
        for name in sorted(files):
            if (other := self._files.setdefault(document_id(name), name)) != name:
                reason = f"its name is that of {other!r}, in another form of its letters"
                fault = RowFault(reason, "rename one of them")
                self.closed.append(fault.at(str(folder / name), "(document)"))
        self._names = sorted(name for name in self._files if Path(name).suffix.lower() in READABLE)
        self._others = set(self._files).difference(self._names)

    def _close(self, error: OSError, remedy: str = "check its permissions") -> None:
        shown = self.folder / Path(error.filename).relative_to(self._root)
        fault = RowFault(f"it cannot be read ({error.strerror})", remedy)
        self.closed.append(fault.at(str(shown), "(folder)"))

    def names(self) -> list[str]:
        """Sorted names of all documents, unreadable ones included."""
        return self._names

    def other_formats(self) -> Counter[str]:
        """Number of files of other formats by the end of their names."""
        return Counter(Path(name).suffix for name in self._others)

    def within(self, folder: str) -> list[str]:
        """Documents of a subfolder; empty if it is not a folder."""
        inside = document_id(folder) + "/"
        return [name for name in self._names if name.startswith(inside)]

    def papers(self, names: Iterable[str] | None = None) -> list[Paper]:
        """Those of these documents that are readable; of all by default."""
        outcomes = map(self.get, self._names if names is None else names)
        return [one for one in outcomes if isinstance(one, Paper)]

    def get(self, name: str) -> Paper | Rejected:
        """Paper of a document, or the fault that makes it unreadable.

        Args:
            name: a path within the folder.
        """
        key = document_id(name)
        if key not in self._read:
            try:
                self._read[key] = self._paper(Path(key))
            except RowFault as error:
                self._read[key] = error.at(str(self.folder / key), "(document)")
        return self._read[key]

    def _paper(self, name: Path) -> Paper:
        path = self._root / self._files.get(name.as_posix(), name)
        suffix = name.suffix.lower()
        try:
            end = path.resolve()
        except (OSError, RuntimeError):
            raise RowFault("its links form a loop", "correct the link") from None
        if name.is_absolute() or not end.is_relative_to(self._root):
            reason = f"it is outside the folder {self.folder}"
            raise RowFault(reason, "copy it into the folder, or name its own folder")
        if any(part.startswith(".") for part in name.parts):
            raise RowFault("it is hidden", "remove the leading dot from its name")
        if not os.path.exists(path):  # unlike that of Path, false where a name is too long
            if name.parts[0] == self._root.name:
                remedy = f"name the folder that holds {name.parts[0]}: {self._root.parent}"
                raise RowFault(f"it is not in {self.folder}", remedy)
            alike = did_you_mean(name.as_posix(), self._names)
            meant = f"; did you mean {alike!r}?" if alike else ""
            raise RowFault(f"it is not in {self.folder}{meant}", "correct the path or add the file")
        if not path.is_file():
            raise RowFault("it is not a regular file", "leave it out")
        if suffix not in READABLE:
            reason = f"{name.suffix or 'a file without extension'} is not a supported format"
            raise RowFault(reason, f"convert it to one of {', '.join(READABLE)}")
        try:
            name.as_posix().encode()
            size = path.stat().st_size / 1e6
            if size > MAX_MB:
                raise RowFault(f"it has {size:.1f} MB, more than {MAX_MB}", "split it")
            text = read_text(path) if suffix in TEXT else self._parser.text(path, self._max_chars)
        except UnicodeEncodeError:
            raise RowFault("its name is not valid UTF-8", "rename it") from None
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})"
            raise RowFault(reason, "check its permissions") from None
        if not text.strip():
            raise RowFault("it contains no text", "leave it out")
        if len(text) > self._max_chars:
            reason = f"it has {len(text):,} characters or more, the limit is {self._max_chars:,}"
            raise RowFault(reason, "split it")
        # The first line with a letter or digit; the file's name for a PDF.
        lines = [] if suffix == ".pdf" else text.splitlines()
        bare = (line.strip("#=*-~ \t") for line in lines)
        title = next((line for line in bare if any(map(str.isalnum, line))), name.stem)
        return Paper(paper_id=name.as_posix(), title=title[:_TITLE_CHARS], abstract="", text=text)
