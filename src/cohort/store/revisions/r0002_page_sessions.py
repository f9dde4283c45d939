"""Sessions of browsers in the database: each server process knows those of the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

__all__ = ["down_revision", "revision", "upgrade"]

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "page_sessions",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_page_sessions_key_id")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_page_sessions")),
    )
    op.create_index(op.f("ix_page_sessions_key_id_begun_at"), "page_sessions", ["key_id", "begun_at"], unique=False)
    op.create_index(op.f("ix_page_sessions_ends_at"), "page_sessions", ["ends_at"], unique=False)
