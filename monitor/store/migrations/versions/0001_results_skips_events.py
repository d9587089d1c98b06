"""Results, skips and events."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NOT_OK = sa.text("outcome <> 'ok'")


def _id() -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, primary_key=True)


def _needed(kind: sa.types.TypeEngine[Any], names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names.split()]


def _optional(kind: sa.types.TypeEngine[Any], names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names.split()]


def upgrade() -> None:
    """Create the three tables."""
    _create_results()
    op.create_table(
        "skips",
        _id(),
        *_needed(sa.Text(), "uid probe endpoint workload site"),
        *_needed(sa.Double(), "slot_at"),
        *_needed(sa.Text(), "reason"),
        sa.UniqueConstraint("uid"),
    )
    op.create_index("ix_skips_probe_slot", "skips", ["endpoint", "workload", "slot_at"])
    op.create_index("ix_skips_slot", "skips", ["slot_at"])
    op.create_table(
        "events",
        _id(),
        *_needed(sa.Text(), "uid"),
        *_needed(sa.Double(), "at"),
        *_needed(sa.Text(), "kind"),
        *_optional(sa.JSON(none_as_null=True), "detail"),
        sa.UniqueConstraint("uid"),
    )
    op.create_index("ix_events_at", "events", ["at"])


def _create_results() -> None:
    text, whole = sa.Text(), sa.BigInteger()
    real: sa.Double[float] = sa.Double()
    op.create_table(
        "results",
        _id(),
        *_needed(text, "uid probe endpoint workload kind site"),
        *_needed(real, "slot_at started_at"),
        *_needed(text, "outcome"),
        *_optional(text, "excluded reason"),
        *_optional(sa.Integer(), "http_status"),
        *_optional(text, "model served_model fingerprint finish_reason"),
        *_optional(text, "request_id_sent request_id error_code error_excerpt"),
        *_optional(real, "dns_s connect_s tls_s send_s wait_s"),
        *_optional(real, "ttfb_s ttft_s ttfat_s last_s tpot_s e2e_s"),
        *_optional(whole, "itl_n"),
        *_optional(real, "itl_p50_s itl_p99_s itl_max_s"),
        *_optional(whole, "chunks prompt_tokens cached_tokens output_tokens reasoning_tokens"),
        *_optional(whole, "visible_tokens"),
        *_optional(text, "output_tokens_source"),
        *_optional(real, "retry_after_s ratelimit_reset_requests_s"),
        *_optional(whole, "ratelimit_remaining_requests"),
        *_optional(real, "loop_lag_s schedule_lag_s late_s"),
        *_optional(whole, "merged"),
        *_optional(text, "stamp_source connection cache"),
        *_optional(sa.Boolean(), "upload tainted"),
        *_optional(real, "cost"),
        *_optional(text, "text_sha256"),
        *_optional(whole, "text_chars reasoning_chars body_bytes"),
        *_optional(sa.JSON(none_as_null=True), "flags server_metrics steps"),
        sa.UniqueConstraint("uid"),
    )
    op.create_index("ix_results_probe_slot", "results", ["endpoint", "workload", "slot_at"])
    op.create_index("ix_results_slot", "results", ["slot_at"])
    op.create_index(
        "ix_results_not_ok",
        "results",
        ["slot_at"],
        sqlite_where=_NOT_OK,
        postgresql_where=_NOT_OK,
    )


def downgrade() -> None:
    """Drop the three tables."""
    for table in ("events", "skips", "results"):
        op.drop_table(table)
