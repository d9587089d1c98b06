"""Hours, days and minutes, and the list of hours that are not closed yet.

The hours of the last 13 days are put on that list, to be closed from the results that are there.
Older ones are not: of their results only the failures were kept.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_TIMES = "ttft ttfat tpot_usage tpot_tokenizer tpot_chunks e2e"
_HOUR = {
    "sqlite": "CAST(slot_at / 3600 AS INTEGER) * 3600.0",
    "postgresql": "floor(slot_at / 3600) * 3600.0",
}
_KEPT_S = 13 * 86_400.0


def upgrade() -> None:
    """Create the four tables and list the hours to close."""
    for table in ("hours", "days"):
        op.create_table(
            table, *_key(), *_counts(), *_optional(sa.LargeBinary(), _TIMES), _unique()
        )
    counts = sa.Column("counts", sa.LargeBinary(), nullable=False)
    op.create_table("minutes", *_key(), counts, _unique())
    op.create_table("open_hours", *_key(), _unique())
    _list_open_hours()


def _key() -> list[sa.Column[Any]]:
    text = [
        sa.Column(name, sa.Text(), nullable=False) for name in ("endpoint", "workload", "site")
    ]
    return [sa.Column("start_at", sa.Double(), nullable=False), *text]


def _unique() -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint("start_at", "endpoint", "workload", "site")


def _counts() -> list[sa.Column[Any]]:
    names = "scheduled good bad rate_limited misconfigured neutral"
    names += " prompt_tokens cached_tokens output_tokens reasoning_tokens"
    return [
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in names.split()),
        sa.Column("cost", sa.Double()),
        *_optional(sa.JSON(none_as_null=True), "outcomes excluded skips"),
    ]


def _optional(kind: sa.types.TypeEngine[Any], names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names.split()]


def _list_open_hours() -> None:
    hour = _HOUR[op.get_bind().dialect.name]
    for table in ("results", "skips"):
        op.execute(
            f"INSERT INTO open_hours (start_at, endpoint, workload, site)"  # noqa: S608 - ours
            f" SELECT DISTINCT {hour}, endpoint, workload, site FROM {table}"
            f" WHERE slot_at >= (SELECT coalesce(max(slot_at), 0) FROM {table}) - {_KEPT_S}"
            " ON CONFLICT DO NOTHING"
        )


def downgrade() -> None:
    """Drop the four tables."""
    for table in ("open_hours", "minutes", "days", "hours"):
        op.drop_table(table)
