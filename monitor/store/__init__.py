"""Results, skips and events on disk: the only package that knows SQLAlchemy and Alembic.

`store.put_*` returns at once; one task writes batches, at most 0.2 s later, and keeps the rows
while the database is locked, full or away. What `flush` has waited for is committed and survives
`kill -9`.
"""

from monitor.store.alerting import AlertStore, Letter
from monitor.store.engine import StoreError
from monitor.store.retention import Keep
from monitor.store.rows import Failure
from monitor.store.store import Store

__all__ = ["AlertStore", "Failure", "Keep", "Letter", "Store", "StoreError"]
