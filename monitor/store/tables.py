"""The tables of measurements. Alembic's revisions bring a database to this shape.

All times are wall clock UTC as seconds since the epoch in double precision, exact to a
microsecond, alike on SQLite and PostgreSQL; durations are seconds.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

metadata = MetaData()

# SQLite gives out row numbers only for a column that says exactly INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _columns(kind: TypeEngine[Any], names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names.split()]


results = Table(
    "results",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),  # boot:seq; a row sent twice is stored once
    Column("probe", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("slot_at", Double, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("excluded", Text),
    Column("reason", Text),
    Column("http_status", Integer),
    *_columns(Text(), "model served_model fingerprint finish_reason request_id_sent request_id"),
    *_columns(Text(), "error_code error_excerpt"),
    *_columns(Double(), "dns_s connect_s tls_s send_s wait_s"),
    *_columns(Double(), "ttfb_s ttft_s ttfat_s last_s tpot_s e2e_s"),
    *_columns(BigInteger(), "itl_n"),
    *_columns(Double(), "itl_p50_s itl_p99_s itl_max_s"),
    *_columns(BigInteger(), "chunks prompt_tokens cached_tokens output_tokens reasoning_tokens"),
    *_columns(BigInteger(), "visible_tokens"),
    *_columns(Text(), "output_tokens_source"),
    *_columns(Double(), "retry_after_s ratelimit_reset_requests_s"),
    *_columns(BigInteger(), "ratelimit_remaining_requests"),
    *_columns(Double(), "loop_lag_s schedule_lag_s late_s"),
    *_columns(BigInteger(), "merged"),
    *_columns(Text(), "stamp_source connection cache"),
    *_columns(Boolean(), "upload tainted"),
    *_columns(Double(), "cost"),
    *_columns(Text(), "text_sha256"),
    *_columns(BigInteger(), "text_chars reasoning_chars body_bytes"),
    *_columns(JSON(none_as_null=True), "flags server_metrics steps"),
    Index("ix_results_probe_slot", "endpoint", "workload", "slot_at"),
    Index("ix_results_slot", "slot_at"),
    # Small, because most results are ok: the newest errors are found without reading the rest.
    Index(
        "ix_results_not_ok",
        "slot_at",
        sqlite_where=text("outcome <> 'ok'"),
        postgresql_where=text("outcome <> 'ok'"),
    ),
)

skips = Table(
    "skips",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("probe", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("slot_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Index("ix_skips_probe_slot", "endpoint", "workload", "slot_at"),
    Index("ix_skips_slot", "slot_at"),
)

events = Table(
    "events",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("detail", JSON(none_as_null=True)),
    Index("ix_events_at", "at"),
)

TIMES = tuple("ttft ttfat tpot_usage tpot_tokenizer tpot_chunks e2e".split())
"""Columns of `hours` and `days`: one histogram each, of ok results that count.

Time per output token is kept apart by who counted the tokens: figures of two sources do not mix.
"""

PROBE = ("endpoint", "workload", "site")
"""What tells one probe's rows from another's; `start_at` tells its hours apart."""


def _span(name: str, *columns: Column[Any]) -> Table:
    """Return a table of one row a probe and span; its key in the order in which rows come."""
    key = [Column("start_at", Double, nullable=False)]
    names = [Column(name, Text, nullable=False) for name in PROBE]
    return Table(name, metadata, *key, *names, *columns, PrimaryKeyConstraint("start_at", *PROBE))


def _counts() -> list[Column[Any]]:
    names = "scheduled good bad rate_limited misconfigured neutral"
    names += " prompt_tokens cached_tokens output_tokens reasoning_tokens"
    return [
        *(Column(name, BigInteger, nullable=False) for name in names.split()),
        Column("cost", Double),
        *_columns(JSON(none_as_null=True), "outcomes excluded skips"),
    ]


hours = _span("hours", *_counts(), *_columns(LargeBinary(), " ".join(TIMES)))

# Running sums, of all days from the first of its block (`rollup.BLOCK_S`) to this one: any stretch
# of days is the difference of two rows, not the sum of thirty.
days = _span("days", *_counts(), *_columns(LargeBinary(), " ".join(TIMES)))

# One row an hour, too: its sixty minutes packed.
minutes = _span("minutes", Column("counts", LargeBinary, nullable=False))

# Hours with rows that no row of `hours` knows of yet. Written with the rows themselves, so that
# neither a crash nor a month's gap loses one, and a late row opens its hour again.
open_hours = _span("open_hours")
