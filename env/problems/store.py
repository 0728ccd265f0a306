"""Store of the server's problems, read from a folder of Parquet files or generated.

The columns are those of `schema.py`; their JSON text is parsed when a problem is played.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from env.errors import ProblemError, SettingsError
from env.problems.fields import SyntheticSettings, generate
from env.problems.schema import CANDIDATES, COLUMNS, Problem, from_row

SEEDED = "synthetic, seed "
"""Start of the source of generated problems; the seed follows."""
_KEPT_CHARS = 16_000_000
"""Characters of parsed problems that are kept although no episode plays them."""


def _parse(row: Mapping[str, Any]) -> Problem:
    try:
        return from_row(row)
    except ValueError as error:
        # The row's values may be gold: the message must not contain them.
        raise ProblemError(
            f"problem {row.get('problem_id')!r}: the row does not fit the schema "
            f"({type(error).__name__}). Run the stage `prepare` again."
        ) from None


class ProblemStore:
    """Problems by id, and by split and difficulty.

    Args:
        rows: Parquet rows, or problems.
        source: their origin, for messages and metadata.

    Raises:
        SettingsError: `rows` is empty, or an id occurs twice.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any] | Problem], source: str) -> None:
        self.source = source
        self._rows: dict[str, Mapping[str, Any] | Problem] = {}
        self._ids: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            values = vars(row) if isinstance(row, Problem) else row
            problem_id = values["problem_id"]
            if problem_id in self._rows:
                raise SettingsError(f"{source}: problem_id {problem_id!r} occurs twice")
            self._rows[problem_id] = row
            self._ids.setdefault((values["split"], values["difficulty"]), []).append(problem_id)
        if not self._rows:
            raise SettingsError(f"{source}: contains no problems. Run the stage `prepare`.")
        self._lock = Lock()
        # Problems that somebody plays, so that sessions share their texts, and the last ones used.
        self._living: WeakValueDictionary[str, Problem] = WeakValueDictionary()
        self._kept: dict[str, tuple[Problem, int]] = {}
        self._kept_chars = 0

    @classmethod
    def load(cls, data_dir: Path) -> ProblemStore:
        """Store of all `*.parquet` files of a folder.

        Raises:
            SettingsError: the folder has no such files, or columns are missing.
        """
        files = sorted(data_dir.glob("*.parquet"))
        if not files:
            raise SettingsError(f"{data_dir}: no Parquet files. Run the stage `prepare`.")
        rows: list[Mapping[str, Any]] = []
        for path in files:
            rows += read_columns(path, COLUMNS, optional=[CANDIDATES])
        return cls(rows, str(data_dir))

    @classmethod
    def generate(cls, settings: SyntheticSettings) -> ProblemStore:
        """Store of the synthetic problems of these settings."""
        return cls(generate(settings), f"{SEEDED}{settings.seed}")

    def of_splits(self, splits: Collection[str], with_difficulty: bool = True) -> ProblemStore:
        """Store of the problems of some splits, in which all others are unknown.

        Args:
            splits: names of the splits.
            with_difficulty: whether problems keep their difficulty; without it, they have "".

        Raises:
            SettingsError: no problem has one of these splits.
        """
        row_ids = [id_ for (split, _), ids in self._ids.items() if split in splits for id_ in ids]
        if not row_ids:
            raise SettingsError(
                f"{self.source}: contains no problem of {', '.join(splits)}. Change env.splits."
            )
        rows: Iterable[Mapping[str, Any] | Problem] = map(self._rows.__getitem__, row_ids)
        if not with_difficulty:
            rows = map(_without_difficulty, rows)
        return ProblemStore(rows, self.source)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, problem_id: str) -> Problem:
        """One problem.

        Raises:
            KeyError: the id is unknown.
            ProblemError: its row does not fit the schema.
        """
        row = self._rows[problem_id]
        if isinstance(row, Problem):
            return row
        with self._lock:
            problem = self._living.get(problem_id)
        problem = problem or _parse(row)
        with self._lock:
            problem = self._living.setdefault(problem_id, problem)
            chars = len(row["papers"])
            self._kept_chars += 0 if self._kept.pop(problem_id, None) else chars
            self._kept[problem_id] = problem, chars
            while self._kept_chars > _KEPT_CHARS:
                self._kept_chars -= self._kept.pop(next(iter(self._kept)))[1]
        return problem

    def ids(self, split: str | None = None, difficulty: str | None = None) -> list[str]:
        """Ids of a split and a difficulty (None: any), in the order of the data."""
        return [
            problem_id
            for (row_split, row_difficulty), ids in self._ids.items()
            if split in (None, row_split) and difficulty in (None, row_difficulty)
            for problem_id in ids
        ]

    def difficulties(self, split: str | None = None) -> list[str]:
        """Difficulties that occur in a split (None: any), in the order of the data."""
        levels = (difficulty for row_split, difficulty in self._ids if split in (None, row_split))
        return list(dict.fromkeys(levels))

    def pick(self, split: str | None, difficulty: str | None, seed: int) -> Problem:
        """Problem that depends on the seed and the ids; consecutive seeds give distinct problems.

        The order of the data has no influence: in generated data it reveals the gold.

        Raises:
            KeyError: no problem has that split and difficulty.
        """
        ids = sorted(self.ids(split, difficulty))
        if not ids:
            raise KeyError((split, difficulty))
        Random(0).shuffle(ids)
        return self.get(ids[seed % len(ids)])

    def most_gold_papers(self) -> int:
        """Largest number of gold papers of a question without candidates; 0 without any."""
        return max(map(_gold_papers, self._rows.values()))


def _without_difficulty(row: Mapping[str, Any] | Problem) -> Mapping[str, Any] | Problem:
    if isinstance(row, Problem):
        return row.model_copy(update={"difficulty": ""})
    return {**row, "difficulty": ""}


def _gold_papers(row: Mapping[str, Any] | Problem) -> int:
    """Gold papers of a question whose par depends on them; with candidates, par is of tokens."""
    if isinstance(row, Problem):
        return 0 if row.candidates else len(row.gold_papers)
    if isinstance(row.get(CANDIDATES), str) and json.loads(row[CANDIDATES]):
        return 0
    return len({span["paper_id"] for fact in json.loads(row["evidence"]) for span in fact["spans"]})


def read_columns(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows of a Parquet file of problems, with the given columns and the optional ones it has.

    Raises:
        SettingsError: the file, or a column of it, is missing.
    """
    import pyarrow.parquet as pq

    if not path.is_file():
        raise SettingsError(f"{path} is missing. Run the stage `prepare`.")
    there = pq.read_schema(path).names
    missing = sorted(set(columns) - set(there))
    if missing:
        raise SettingsError(
            f"{path}: columns {missing} are missing (written by another version of this project). "
            "Run the stage `prepare` again."
        )
    wanted = [*columns, *(name for name in optional if name in there)]
    return list(pq.read_table(path, columns=wanted).to_pylist())
