"""The book of alerts, the outbox and the silences."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_WAITING = sa.text("done_at IS NULL")


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, primary_key=True)


def upgrade() -> None:
    """Create the three tables."""
    op.create_table(
        "alert_states",
        sa.Column("site", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "outbox",
        _id(),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("done_at", sa.Double()),
        sa.Column("refused", sa.Boolean(), nullable=False),
        sa.UniqueConstraint("uid"),
    )
    op.create_index(
        "ix_outbox_waiting",
        "outbox",
        ["site", "id"],
        sqlite_where=_WAITING,
        postgresql_where=_WAITING,
    )
    op.create_table(
        "silences",
        _id(),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("until_at", sa.Double()),
        sa.Column("ack", sa.Boolean(), nullable=False),
        sa.Column("matchers", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.UniqueConstraint("uid"),
    )


def downgrade() -> None:
    """Drop the three tables."""
    for table in ("silences", "outbox", "alert_states"):
        op.drop_table(table)
