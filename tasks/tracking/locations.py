"""Folder in which a local MLflow store expects its files.

MLflow records absolute addresses. In a moved project they lead nowhere, and in a copied one to the
files of the original. Such a store is refused until `relocate` has rewritten its addresses.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, unquote

from tasks.errors import ConfigError, StageError
from tasks.io import replacing

ARTIFACTS = Path("mlartifacts")
"""Folder of a store's files, beside its database."""


def require_here(store: Path) -> None:
    """Refuse a store whose files are those of another folder.

    Args:
        store: the database; it need not exist.

    Raises:
        ConfigError: the project was moved or copied.
    """
    try:
        others = _others(store)
    except sqlite3.Error:  # MLflow names the fault of its store
        return
    if others:
        raise ConfigError(
            f"{store} expects its files in {_shown(others)}: this project was moved or copied. "
            f"Run `rlm relocate` once; {ARTIFACTS} of this project is used from then on."
        )


def relocate(store: Path) -> Path | None:
    """Make a store expect its files beside it, and return the copy of the store as it was.

    Returns:
        None if the store needed no change.

    Raises:
        StageError: the files are not beside the store, it is damaged, or a process uses it.
    """
    try:
        others = _others(store)
    except sqlite3.Error as error:
        raise StageError(
            f"{store} cannot be read ({error}), and nothing is changed. If a process uses it, stop "
            "that (`make down`), then run `rlm relocate` again; if it is damaged, restore it."
        ) from None
    if not others:
        return None
    if not (store.resolve().parent / ARTIFACTS).is_dir():
        raise StageError(
            f"{ARTIFACTS} is missing here. Copy {_shown(others)} to this folder, then run "
            "`rlm relocate` again."
        )
    snapshot = store.with_name(f"{store.name}.before-relocate")
    try:
        with closing(sqlite3.connect(store, timeout=30)) as database:
            with replacing(snapshot) as copy, closing(sqlite3.connect(copy)) as backup:
                database.backup(backup)
            with database:
                for other in others:
                    _rewrite(database, other, own(store))
    except sqlite3.Error as error:
        raise StageError(
            f"{store} cannot be rewritten ({error}), and nothing is changed. Stop the processes "
            "that use it (`make down`), then run `rlm relocate` again."
        ) from None
    return snapshot


def _others(store: Path) -> list[str]:
    """Addresses of the folders, other than the store's own, in which it expects its files."""
    if not store.is_file() or store.stat().st_size == 0:
        return []
    address = f"file:{quote(str(store.resolve()))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as database:
        places = database.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall()
    ours = [place for (place,) in places if re.fullmatch(rf"file:.*/{ARTIFACTS}", place or "")]
    return [place for place in ours if place != own(store)]


def own(store: Path) -> str:
    """Address of the folder beside a store."""
    return (store.resolve().parent / ARTIFACTS).as_uri()


def _shown(places: list[str]) -> str:
    return ", ".join(unquote(place.removeprefix("file://")) for place in places)


def _rewrite(database: sqlite3.Connection, old: str, new: str) -> None:
    """Replace the beginning of every text that is `old` or a path below it."""
    columns = database.execute(
        "SELECT tables.name, columns.name FROM sqlite_master AS tables, "
        "pragma_table_info(tables.name) AS columns WHERE tables.type = 'table' "
        "AND (columns.type LIKE '%CHAR%' OR columns.type LIKE '%TEXT%')"
    ).fetchall()
    for table, column in columns:
        database.execute(
            f'UPDATE "{table}" SET "{column}" = ? || substr("{column}", ?) '
            f'WHERE "{column}" = ? OR substr("{column}", 1, ?) = ?',
            (new, len(old) + 1, old, len(old) + 1, f"{old}/"),
        )
