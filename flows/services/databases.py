"""Check of the PostgreSQL databases that Prefect's and MLflow's servers are to use."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote, urlsplit

from tasks.errors import ConfigError, StageError

DRIVERS = {
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg",
    "MLFLOW_BACKEND_STORE_URI": "postgresql+psycopg",
}
"""Driver in the address of each server's database, by the variable that names it."""
LEAST_VERSION = 14
_MAY_CREATE = "SELECT has_schema_privilege(current_schema()::text, 'CREATE')"


def require_all() -> None:
    """Check each database that a variable names; SQLite needs no check.

    Raises:
        ConfigError: the address cannot be read, or the extra is not installed. Or the driver is
            another one, the user may not create tables, or PostgreSQL is older than
            `LEAST_VERSION`.
        StageError: the database refuses or does not answer.
    """
    for variable, driver in DRIVERS.items():
        url = os.environ.get(variable, "")
        if url.startswith("postgres"):
            _require(variable, driver, url)


def _require(variable: str, driver: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
        if "@" in parts.path + parts.query + parts.fragment:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"{variable} is not an address of a database. Write it as {driver}://USER:PASSWORD@"
            "HOST/DATABASE, with %2F for a / in the password, %23 for a #, %40 for an @."
        ) from None
    try:
        import psycopg
    except ImportError:
        raise ConfigError(
            f"{variable} needs the extra postgres. Install it: "
            'pip install --constraint constraints.txt --editable ".[postgres]"'
        ) from None
    if parts.scheme != driver:
        raise ConfigError(f"{variable} begins with {parts.scheme}://. Write it as {driver}://.")
    where = f"{variable} ({parts.hostname}:{port}{parts.path})"
    try:
        with psycopg.connect(
            host=parts.hostname or dict(parse_qsl(parts.query)).get("host"),
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            dbname=parts.path[1:],
            connect_timeout=5,
        ) as connection:
            version = connection.info.server_version // 10_000
            row = connection.execute(_MAY_CREATE).fetchone()
    except psycopg.OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        raise StageError(
            f"{where} cannot be used ({reason}). Start or create it, or correct the variable."
        ) from None
    if row is None or not row[0]:
        raise ConfigError(
            f"{where}: the user {parts.username} may not create tables there. Make it the owner: "
            f"ALTER DATABASE {parts.path[1:]} OWNER TO {parts.username};"
        )
    if version < LEAST_VERSION:
        raise ConfigError(
            f"{where} is PostgreSQL {version}, which is too old. Use {LEAST_VERSION} or later."
        )
