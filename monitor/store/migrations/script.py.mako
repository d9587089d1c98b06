"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Bring the database to this revision."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Bring the database back to the revision before."""
    ${downgrades if downgrades else "pass"}
