"""Open jobs are indexed in the order in which they are claimed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["down_revision", "revision", "upgrade"]

revision = "0003"
down_revision = "0002"

_OPEN = sa.text("status IN ('validating_files', 'queued', 'running', 'pausing', 'paused')")


def upgrade() -> None:
    op.drop_index("ix_jobs_open", "jobs")
    op.create_index("ix_jobs_open", "jobs", ["position"], sqlite_where=_OPEN, postgresql_where=_OPEN)
