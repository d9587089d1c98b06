"""What alerting keeps: its book, the outbox and the silences.

Book and outbox are written in one transaction, or a crash between them would repeat a notice or
forget one. Nothing here goes through the writer's queue: who saves a notice waits for the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Insert,
    Integer,
    Table,
    Text,
    delete,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from monitor.alerting import AlertBook, AlertState, Incident, Notice, Silence
from monitor.store.engine import errors_named, named, writing
from monitor.store.tables import metadata

KEEP_S = 30 * 86_400.0
"""How long what was delivered, and silences that have ended, can still be looked at."""

_Id = BigInteger().with_variant(Integer(), "sqlite")

alert_states = Table(
    "alert_states",
    metadata,
    Column("site", Text, primary_key=True),
    Column("name", Text, primary_key=True),  # alert/KEY or incident/ID
    Column("body", Text, nullable=False),  # JSON
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Id, primary_key=True),  # also the order of sending
    Column("uid", Text, nullable=False, unique=True),  # channel:key; queued twice is sent once
    Column("site", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", Text, nullable=False),  # JSON
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("done_at", Double),
    Column("refused", Boolean, nullable=False),
    Index(
        "ix_outbox_waiting",
        "site",
        "id",
        sqlite_where=text("done_at IS NULL"),
        postgresql_where=text("done_at IS NULL"),
    ),
)

silences = Table(
    "silences",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("until_at", Double),
    Column("ack", Boolean, nullable=False),
    Column("matchers", JSON(none_as_null=True), nullable=False),
    Column("author", Text, nullable=False),
    Column("comment", Text, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A notice on its way to one channel.

    Attributes:
        uid: Of this letter; the notice's key is the same for every channel.
        attempts: Deliveries tried so far.
    """

    uid: str
    channel: str
    notice: Notice
    attempts: int = 0


class AlertStore:
    """The tables of alerting for one site. Whatever is asked raises `StoreError` when it fails."""

    def __init__(self, engine: AsyncEngine, site: str) -> None:
        self._engine, self._writing = engine, writing(engine)
        self._name, self._site = named(engine.url), site
        self._saved: dict[str, str] = {}

    async def load(self) -> AlertBook:
        """Return the book as it was last saved; an empty one at first."""
        asked = select(alert_states.c.name, alert_states.c.body)
        with errors_named(self._name):
            async with self._engine.connect() as connection:
                rows = await connection.execute(asked.where(alert_states.c.site == self._site))
                self._saved = {name: body for name, body in rows}  # noqa: C416 - of rows
        return _book(self._saved)

    async def save(self, book: AlertBook, letters: Sequence[Letter] = ()) -> None:
        """Keep a book, and queue letters, in one transaction; return when it is committed."""
        rows = _rows(book)
        changed = {name: body for name, body in rows.items() if self._saved.get(name) != body}
        stale = [*changed, *(self._saved.keys() - rows.keys())]
        if not stale and not letters:
            return
        with errors_named(self._name):
            async with self._writing.begin() as connection:
                for names in _parts(stale):
                    await connection.execute(
                        delete(alert_states)
                        .where(alert_states.c.site == self._site)
                        .where(alert_states.c.name.in_(names))
                    )
                if changed:
                    await connection.execute(
                        alert_states.insert(),
                        [
                            {"site": self._site, "name": name, "body": body}
                            for name, body in changed.items()
                        ],
                    )
                if letters:
                    rows_of_letters = [_letter_row(self._site, letter) for letter in letters]
                    await connection.execute(self._insert(outbox), rows_of_letters)
        self._saved = rows

    async def waiting(self) -> list[Letter]:
        """Return the letters not delivered, in the order in which they were queued."""
        asked = select(outbox).where(outbox.c.site == self._site, outbox.c.done_at.is_(None))
        with errors_named(self._name):
            async with self._engine.connect() as connection:
                rows = (await connection.execute(asked.order_by(outbox.c.id))).all()
        return [
            Letter(
                uid=row.uid,
                channel=row.channel,
                notice=msgspec.json.decode(row.body, type=Notice),
                attempts=row.attempts,
            )
            for row in rows
        ]

    async def done(self, uid: str, at: float, attempts: int, refused: str | None = None) -> bool:
        """Note that a letter was delivered; or, with the reason, that its receiver refused it.

        Return whether the letter is known here.
        """
        values = {"done_at": at, "attempts": attempts, "error": refused}
        return await self._update(uid, **values, refused=refused is not None)

    async def tried(self, uid: str, attempts: int, error: str) -> None:
        """Note that a letter could not be delivered yet."""
        await self._update(uid, attempts=attempts, error=error)

    async def _update(self, uid: str, **values: Any) -> bool:
        change = update(outbox).where(outbox.c.site == self._site, outbox.c.uid == uid)
        with errors_named(self._name):
            async with self._writing.begin() as connection:
                found = await connection.execute(change.values(**values))
        return bool(found.rowcount)

    async def silences(self, now: float) -> tuple[Silence, ...]:
        """Return the silences and acknowledgements that may still matter."""
        alive = or_(silences.c.until_at > now, silences.c.until_at.is_(None))
        asked = select(silences).where(alive, silences.c.at > now - 12 * KEEP_S)
        with errors_named(self._name):
            async with self._engine.connect() as connection:
                rows = (await connection.execute(asked.order_by(silences.c.id))).all()
        return tuple(
            Silence(
                id=row.uid,
                matchers=row.matchers,
                at=row.at,
                until_at=row.until_at,
                ack=row.ack,
                author=row.author,
                comment=row.comment,
            )
            for row in rows
        )

    async def add_silence(self, silence: Silence) -> None:
        """Keep a silence or an acknowledgement; the running monitor sees it within seconds."""
        row = {
            "uid": silence.id,
            "at": silence.at,
            "until_at": silence.until_at,
            "ack": silence.ack,
            "matchers": dict(silence.matchers),
            "author": silence.author,
            "comment": silence.comment,
        }
        with errors_named(self._name):
            async with self._writing.begin() as connection:
                await connection.execute(silences.insert(), [row])

    async def end_silence(self, uid: str, at: float) -> bool:
        """End a silence now; return whether there is such a one."""
        with errors_named(self._name):
            async with self._writing.begin() as connection:
                done = await connection.execute(
                    update(silences).where(silences.c.uid == uid).values(until_at=at)
                )
        return bool(done.rowcount)

    async def prune(self, now: float) -> None:
        """Delete what nobody will look at again."""
        with errors_named(self._name):
            async with self._writing.begin() as connection:
                await connection.execute(delete(outbox).where(outbox.c.done_at < now - KEEP_S))
                await connection.execute(
                    delete(silences).where(silences.c.until_at < now - KEEP_S)
                )

    def _insert(self, table: Table) -> Insert:
        if self._engine.dialect.name == "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing(index_elements=["uid"])
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=["uid"])


def _letter_row(site: str, letter: Letter) -> dict[str, Any]:
    return {
        "uid": letter.uid,
        "site": site,
        "channel": letter.channel,
        "key": letter.notice.key,
        "incident": letter.notice.incident,
        "at": letter.notice.at,
        "body": _json(letter.notice),
        "attempts": letter.attempts,
        "refused": False,
    }


def _rows(book: AlertBook) -> dict[str, str]:
    alerts = {f"alert/{key}": _json(state) for key, state in book.alerts.items()}
    return alerts | {f"incident/{key}": _json(found) for key, found in book.incidents.items()}


def _book(rows: Mapping[str, str]) -> AlertBook:
    alerts, incidents = {}, {}
    for name, body in rows.items():
        kind, _, key = name.partition("/")
        if kind == "alert":
            alerts[key] = msgspec.json.decode(body, type=AlertState)
        else:
            incidents[key] = msgspec.json.decode(body, type=Incident)
    return AlertBook(alerts=alerts, incidents=incidents)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode().replace("\\u0000", "")  # PostgreSQL takes no NUL


def _parts(names: Sequence[str], size: int = 500) -> Iterable[Sequence[str]]:
    return (names[at : at + size] for at in range(0, len(names), size))
