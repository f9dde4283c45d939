"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

__all__ = ["down_revision", "revision", "upgrade"]

revision = "0001"
down_revision = None

_WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_THERE = sa.text("removed_at IS NULL")
_OPEN = sa.text("status IN ('validating_files', 'queued', 'running', 'pausing', 'paused')")
_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    _tenants()
    _blobs()
    _jobs()
    _job_indexes()
    _what_happened()
    _results()
    _accounts()


def _tenants() -> None:
    op.create_table(
        "organisations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organisations")),
    )
    op.create_index(
        "uq_organisations_name",
        "organisations",
        ["name"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organisation_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("max_stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("max_open_jobs", sa.BigInteger(), nullable=True),
        sa.Column("max_tokens_per_day", sa.BigInteger(), nullable=True),
        sa.Column("max_requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name=op.f("fk_projects_organisation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
    )
    op.create_index(
        "uq_projects_organisation_id_name",
        "projects",
        ["organisation_id", "name"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("scopes", _JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_keys_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_keys_digest")),
    )
    op.create_index(op.f("ix_keys_project_id"), "keys", ["project_id"], unique=False)


def _blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_blobs_project_id")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_project_id_state_bytes"), "blobs", ["project_id", "state", "bytes"], unique=False)
    op.create_index(op.f("ix_blobs_state_changed_at"), "blobs", ["state", "changed_at"], unique=False)
    op.create_table(
        "files",
        sa.Column("position", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("status", sa.String(40), nullable=False),
        sa.Column("status_details", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("blob", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["blob"], ["blobs.name"], name=op.f("fk_files_blob")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_files_project_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_files")),
        sa.UniqueConstraint("id", name=op.f("uq_files_id")),
    )
    op.create_index(op.f("ix_files_blob"), "files", ["blob"], unique=False)
    op.create_index(op.f("ix_files_deleted_at"), "files", ["deleted_at"], unique=False)
    op.create_index(op.f("ix_files_expires_at"), "files", ["expires_at"], unique=False)
    op.create_index(op.f("ix_files_project_id_position"), "files", ["project_id", "position"], unique=False)
    op.create_index(
        op.f("ix_files_project_id_purpose_position"), "files", ["project_id", "purpose", "position"], unique=False
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("position", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("status", sa.String(40), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("suffix", sa.Text(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("training_file", sa.Text(), nullable=True),
        sa.Column("validation_file", sa.Text(), nullable=True),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("hyperparameters", _JSON, nullable=False),
        sa.Column("metadata", _JSON, nullable=True),
        sa.Column("has_metadata", sa.Boolean(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=True),
        sa.Column("run_directory", sa.Text(), nullable=True),
        sa.Column("result_files", _JSON, nullable=False),
        sa.Column("error", _JSON, nullable=True),
        sa.Column("trained_tokens", sa.BigInteger(), nullable=True),
        sa.Column("estimated_finish", sa.Double(), nullable=True),
        sa.Column("fine_tuned_model", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("num_events", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sa.UniqueConstraint("project_id", "idempotency_key", name=op.f("uq_jobs_project_id_idempotency_key")),
    )


def _job_indexes() -> None:
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["position"],
        unique=False,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index(
        "ix_jobs_open_of_project",
        "jobs",
        ["project_id"],
        unique=False,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index(
        op.f("ix_jobs_project_id_has_metadata_position"),
        "jobs",
        ["project_id", "has_metadata", "position"],
        unique=False,
    )
    op.create_index(op.f("ix_jobs_project_id_kind_position"), "jobs", ["project_id", "kind", "position"], unique=False)
    op.create_index(op.f("ix_jobs_project_id_position"), "jobs", ["project_id", "position"], unique=False)


def _what_happened() -> None:
    op.create_table(
        "job_metadata",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_metadata_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_job_metadata_project_id")),
        sa.PrimaryKeyConstraint("job_id", "key", name=op.f("pk_job_metadata")),
    )
    op.create_index(
        op.f("ix_job_metadata_project_id_key_value_position"),
        "job_metadata",
        ["project_id", "key", "value", "position"],
        unique=False,
    )
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("level", sa.String(40), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", _JSON, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_events_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_job_events_project_id")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_job_events")),
        sa.UniqueConstraint("id", name=op.f("uq_job_events_id")),
    )


def _results() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("position", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step_number", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("blob", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["blob"], ["blobs.name"], name=op.f("fk_checkpoints_blob")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_checkpoints_project_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("id", name=op.f("uq_checkpoints_id")),
        sa.UniqueConstraint("job_id", "step_number", name=op.f("uq_checkpoints_job_id_step_number")),
        sa.UniqueConstraint("model", name=op.f("uq_checkpoints_model")),
    )
    op.create_index(op.f("ix_checkpoints_blob"), "checkpoints", ["blob"], unique=False)
    op.create_index(op.f("ix_checkpoints_job_id_position"), "checkpoints", ["job_id", "position"], unique=False)
    op.create_table(
        "models",
        sa.Column("position", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("blob", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["blob"], ["blobs.name"], name=op.f("fk_models_blob")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_models_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_models_project_id")),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_models")),
        sa.UniqueConstraint("id", name=op.f("uq_models_id")),
    )
    op.create_index(op.f("ix_models_blob"), "models", ["blob"], unique=False)
    op.create_index(op.f("ix_models_job_id"), "models", ["job_id"], unique=False)
    op.create_index(op.f("ix_models_project_id_position"), "models", ["project_id", "position"], unique=False)


def _accounts() -> None:
    op.create_table(
        "usage",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("amount", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_usage_project_id")),
        sa.PrimaryKeyConstraint("project_id", "day", "kind", name=op.f("pk_usage")),
    )
    op.create_table(
        "job_usage",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("amount", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_usage_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_job_usage_project_id")),
        sa.PrimaryKeyConstraint("job_id", "kind", name=op.f("pk_job_usage")),
    )
    op.create_table(
        "audit_entries",
        sa.Column("position", _WHOLE, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_audit_entries")),
    )
    op.create_index(
        op.f("ix_audit_entries_project_id_position"), "audit_entries", ["project_id", "position"], unique=False
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
