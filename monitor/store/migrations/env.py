"""Runs the revisions on the connection that `monitor.store` opened; Alembic executes this file."""

from __future__ import annotations

from alembic import context

from monitor.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter most things in place
)
with context.begin_transaction():
    context.run_migrations()
