"""When a named lease's work was last done."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["down_revision", "revision", "upgrade"]

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("leases", sa.Column("done_at", sa.Double()))
