from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

import monitor.store
from monitor.store import Store, StoreError
from monitor.store.engine import _MIGRATIONS, HEAD, open_engine, parse_url, writing
from monitor.store.tables import metadata


def differences(connection: Connection) -> Any:
    options = {"compare_type": True, "compare_server_default": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


async def test_the_revisions_lead_to_the_tables_the_program_uses(store_url: str) -> None:
    """No column is only in the code or only in the database."""
    engine = await open_engine(store_url)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        found = await connection.execute(text("SELECT version_num FROM alembic_version"))
        assert found.scalar() == HEAD
    await engine.dispose()


async def test_the_revisions_are_part_of_the_package() -> None:
    """Installed from a wheel there is nothing else."""
    folder = Path(monitor.store.__file__).parent / "migrations"
    assert (folder / "env.py").is_file()
    assert list((folder / "versions").glob(f"{HEAD}_*.py"))


async def test_the_revisions_can_be_taken_back(store_url: str) -> None:
    """Down to an empty database and up again."""
    engine = await open_engine(store_url)

    def down(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}

    async with writing(engine).begin() as connection:
        await connection.run_sync(down)
    await engine.dispose()
    await (await Store.open(store_url)).close()


async def test_a_missing_driver_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PostgreSQL's is an extra."""

    def missing(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg")

    monkeypatch.setattr("monitor.store.engine.create_async_engine", missing)
    with pytest.raises(
        StoreError, match=r"needs asyncpg; install endpoint-perf-monitor\[postgres\]"
    ):
        await Store.open("postgresql://u@h/n")


async def test_opening_again_changes_nothing(store_url: str) -> None:
    """And two programs at the same time create the schema once."""
    first, second = await asyncio.gather(Store.open(store_url), Store.open(store_url))
    third = await Store.open(store_url)
    for store in (first, second, third):
        await store.close()


async def test_a_newer_schema_is_refused_with_advice(store_url: str) -> None:
    """An old program must not write into what it does not understand."""
    engine = await open_engine(store_url)
    async with writing(engine).begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()
    with pytest.raises(StoreError, match=r"schema 9999 is newer .* upgrade endpoint-monitor"):
        await Store.open(store_url)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """And left as it is."""
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, " * 1000)
    with pytest.raises(StoreError, match=r"store .*store\.db: file is not a database$"):
        await Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == b"not a database, " * 1000


async def test_a_damaged_database_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    """The header is there, the pages are not."""
    await (await Store.open(sqlite_url)).close()
    path = tmp_path / "store.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(StoreError, match=r"store\.db: database disk image is malformed$"):
        await Store.open(sqlite_url)


async def test_a_foreign_database_is_refused(tmp_path: Path, sqlite_url: str) -> None:
    """Somebody's file with a table of that name is not ours to fill."""
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("CREATE TABLE results (x)")
    connection.close()
    with pytest.raises(StoreError, match="table results already exists"):
        await Store.open(sqlite_url)


async def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """A typing error in the path is the likeliest fault."""
    with pytest.raises(StoreError, match=f"no directory {tmp_path}/missing$"):
        await Store.open(f"sqlite:///{tmp_path}/missing/store.db")


async def test_a_folder_that_cannot_be_written_is_named() -> None:
    """/proc refuses even root."""
    with pytest.raises(StoreError, match=r"^store /proc/store\.db: .*unable to open"):
        await Store.open("sqlite:////proc/store.db")


async def test_a_server_that_is_not_there_is_one_line_without_the_password() -> None:
    """Port 1 answers nobody."""
    with pytest.raises(StoreError) as caught:
        await Store.open("postgresql://user:s3cret@127.0.0.1:1/name")
    message = str(caught.value)
    assert message.startswith("store postgresql")
    assert "s3cret" not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "url",
    ["", "store.db", "sqlite://", "sqlite:///:memory:", "mysql://u:s3cret@h/n", "x://s3cret"],
)
def test_what_is_no_url_of_ours_is_refused_without_repeating_it(url: str) -> None:
    """It may hold a password."""
    with pytest.raises(StoreError) as caught:
        parse_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("sqlite:///a.db", "sqlite+aiosqlite:///a.db"),
        ("sqlite+aiosqlite:///a.db", "sqlite+aiosqlite:///a.db"),
        ("postgresql://u@h/n", "postgresql+asyncpg://u@h/n"),
        ("postgres://u@h/n", "postgresql+asyncpg://u@h/n"),
        ("postgresql+psycopg://u@h/n", "postgresql+asyncpg://u@h/n"),
        ("postgresql://u@h/n?sslmode=require", "postgresql+asyncpg://u@h/n?ssl=require"),
    ],
)
def test_urls_people_paste_get_the_driver_we_have(given: str, used: str) -> None:
    """Nobody should have to know its name."""
    assert parse_url(given).render_as_string() == used


async def test_sqlite_is_set_for_one_writer_beside_readers(sqlite_url: str) -> None:
    """WAL, NORMAL, incremental vacuum; the last only takes effect on a new file."""
    engine = await open_engine(sqlite_url)
    async with engine.connect() as connection:
        asked = ("journal_mode", "synchronous", "auto_vacuum")
        values = [(await connection.exec_driver_sql(f"PRAGMA {p}")).scalar() for p in asked]
    await engine.dispose()
    assert values == ["wal", 1, 2]


async def test_a_writer_that_reads_first_never_fails_for_it(sqlite_url: str) -> None:
    """A deferred transaction would say "database is locked" at once, without waiting."""
    writer = writing(await open_engine(sqlite_url))

    async def read_then_write(i: int) -> None:
        async with writer.begin() as connection:
            await connection.execute(text("SELECT count(*) FROM events"))
            await asyncio.sleep(0.01)
            await connection.execute(
                text("INSERT INTO events (uid, at, kind) VALUES (:uid, 0, 'x')"), {"uid": str(i)}
            )

    await asyncio.gather(*(read_then_write(i) for i in range(10)))
    async with writer.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM events"))).scalar() == 10
    await writer.dispose()


async def test_opening_waits_for_whoever_holds_the_file(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predecessor about to end, or a backup; not for ever."""
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        opening = asyncio.create_task(Store.open(sqlite_url))
        await asyncio.sleep(1.5)
        assert not opening.done()
        other.execute("ROLLBACK")
        store = await opening
        await store.close()
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("monitor.store.engine.OPEN_S", 0.0)
        with pytest.raises(StoreError, match=r"store\.db: database is locked$"):
            await Store.open(sqlite_url)


async def test_opening_logs_nothing(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Alembic's own lines are not for our readers."""
    with caplog.at_level(logging.INFO):
        await (await Store.open(sqlite_url)).close()
    assert caplog.text == ""
