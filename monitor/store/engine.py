"""Opening a database: the URL, what SQLite must be told, and the schema's revision.

Errors: `StoreError`, one line for a person, is all that leaves this package, whatever the
libraries raise; passwords never appear in it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

HEAD = "0003"
"""The newest revision under migrations/versions; a database at it needs no Alembic."""

BUSY_S = 1.0
OPEN_S = 5.0
_PAUSE_S = 0.1
# SQLAlchemy puts asyncpg's class before its message.
_CLASS = re.compile(r"<class '[\w.]*?(\w+)'>")
_WRITES = "monitor_writes"
_MIGRATIONS = Path(__file__).parent / "migrations"
_MIGRATION_LOCK = zlib.crc32(b"endpoint-monitor migrations")


class StoreError(Exception):
    """The database cannot be used; the message says where, what and often what to do."""


def parse_url(url: str) -> URL:
    """Return the URL with the asynchronous driver: SQLite by aiosqlite, PostgreSQL by asyncpg.

    Raises:
        StoreError: Not a database URL, or another kind of database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError("store: not a URL like sqlite:///file.db or postgresql://...") from None
    kind = parsed.get_backend_name()
    if kind == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite+aiosqlite")
    if kind in ("postgresql", "postgres"):
        query = dict(parsed.query)
        if "sslmode" in query:  # libpq's word, which people paste; asyncpg's is ssl
            query["ssl"] = query.pop("sslmode")
        return parsed.set(drivername="postgresql+asyncpg", query=query)
    raise StoreError(f"store: {kind} is neither an SQLite file nor PostgreSQL")


async def open_engine(url: str) -> AsyncEngine:
    """Return an engine on a database at our newest schema, which is created where missing.

    Raises:
        StoreError: The database cannot be opened, read, written or understood.
    """
    parsed = parse_url(url)
    where = named(parsed)
    if _is_sqlite(parsed):
        with errors_named(where):
            await asyncio.to_thread(_check_file, where, Path(str(parsed.database)))
    try:
        engine = _build(parsed)
    except ModuleNotFoundError as exc:
        raise StoreError(
            f"{where}: needs {exc.name}; install endpoint-perf-monitor[postgres]"
        ) from exc
    try:
        with errors_named(where):
            await _upgrade_patiently(engine, where)
    except BaseException:
        await engine.dispose()
        raise
    return engine


def named(url: URL) -> str:
    """Return what errors call this database: its file, or its URL without the password."""
    return f"store {url.database if _is_sqlite(url) else url.render_as_string()}"


@contextmanager
def errors_named(where: str) -> Iterator[None]:
    """Turn what the libraries raise about a database into one line that says which."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as exc:
        raise StoreError(f"{where}: {explain(exc)}") from exc


def writing(engine: AsyncEngine) -> AsyncEngine:
    """Return the engine as a writer must use it.

    On SQLite its transactions begin IMMEDIATE: one that first reads and then writes fails at
    once with "database is locked" when another writer was faster, however long it may wait.
    """
    return engine.execution_options(**{_WRITES: True})


def explain(exc: BaseException) -> str:
    """Return one line about a database error, without SQL and values."""
    cause = getattr(exc, "orig", None) or exc
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return _CLASS.sub(r"\1", lines[0])


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _check_file(where: str, path: Path) -> None:
    """Find what is wrong with a file by the standard library first.

    aiosqlite's thread outlives a failed connect, and reports to a loop that the program, on its
    way out with our message, may have closed: a traceback after the message.
    """
    if not path.absolute().parent.is_dir():
        raise StoreError(f"{where}: no directory {path.absolute().parent}")
    with closing(sqlite3.connect(path, timeout=0.0)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc):  # that may pass, and is waited for
                raise


def _build(url: URL) -> AsyncEngine:
    # Values belong into no log: an error body is redacted, but it is still somebody's text.
    common: dict[str, Any] = {"json_serializer": _to_json, "hide_parameters": True}
    if not _is_sqlite(url):
        return create_async_engine(url, pool_pre_ping=True, **common)
    engine = create_async_engine(
        url,
        **common,
        # No transactions of sqlite3's own making; BEGIN comes from us, see _begin.
        connect_args={"isolation_level": None, "timeout": BUSY_S},
    )
    event.listen(engine.sync_engine, "connect", _set_pragmas)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _set_pragmas(connection: Any, _record: Any) -> None:
    """Set what SQLite needs to serve one writer beside many readers.

    auto_vacuum must come first: it takes effect only before the file has a page, and lets a
    shorter retention shrink the file. WAL with synchronous NORMAL: a commit is in the file
    system's cache when it returns, so `kill -9` loses nothing committed; a power cut may lose
    the last moments but never damages the file. FULL would add an fsync to each of five commits
    a second to guard against the latter.
    """
    cursor = connection.cursor()
    for pragma in (
        "auto_vacuum=INCREMENTAL",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        f"journal_size_limit={64 << 20}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()  # NaN becomes null, which PostgreSQL accepts


async def _upgrade_patiently(engine: AsyncEngine, where: str) -> None:
    """Upgrade, waiting for whoever holds the database: a predecessor about to end, a backup."""
    deadline = time.monotonic() + OPEN_S
    while True:
        try:
            return await _upgrade(engine, where)
        except OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


async def _upgrade(engine: AsyncEngine, where: str) -> None:
    async with engine.connect() as connection:
        if await connection.run_sync(_revision) == HEAD:
            await connection.execute(text("SELECT id FROM results LIMIT 1"))
            return
    async with writing(engine).begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite's BEGIN IMMEDIATE serves as well
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        await connection.run_sync(_run_migrations, where)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _run_migrations(connection: Connection, where: str) -> None:
    # Here and not above: the import takes longer than opening a database that needs nothing.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    logging.getLogger("alembic").setLevel(logging.WARNING)  # its INFO lines are not for users
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    revision = _revision(connection)
    if revision is not None and revision not in known:
        raise StoreError(
            f"{where}: schema {revision} is newer than this program's {HEAD}; "
            "upgrade endpoint-monitor or use another database"
        )
    command.upgrade(config, "head")
