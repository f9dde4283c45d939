"""The tables of a store. The steps that make them in a database that exists already are in ``revisions``.

Every row of a tenant has a ``project_id``. ``position`` grows with each row: lists are read by it, in both directions,
from any row on. Times are seconds since 1970 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Enum,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from cohort.store.enums import BlobState, EventLevel, FileStatus, JobKind, JobStatus, UsageKind

__all__ = [
    "IS_OPEN",
    "audit_entries",
    "blobs",
    "checkpoints",
    "files",
    "job_events",
    "job_metadata",
    "job_usage",
    "jobs",
    "keys",
    "leases",
    "metadata",
    "models",
    "organisations",
    "page_sessions",
    "projects",
    "usage",
]

# names of their own, so that later revisions can name what they change, on both databases
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Whole = BigInteger().with_variant(Integer, "sqlite")
_Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def _words(kind: type[StrEnum]) -> Enum:
    def values(members: Iterable[StrEnum]) -> list[str]:
        return [member.value for member in members]

    # text without a constraint: a later version's word needs no change of the table
    return Enum(kind, native_enum=False, create_constraint=False, values_callable=values, length=40)


def _position() -> Column[int]:
    return Column("position", _Whole, primary_key=True, autoincrement=True)


def _project() -> Column[str]:
    return Column("project_id", Text, ForeignKey("projects.id"), nullable=False)


def _blob() -> Column[str]:
    return Column("blob", Text, ForeignKey("blobs.name"), nullable=True)


def _listed() -> tuple[Column[int], Column[str], Column[str]]:
    """Return the first columns of what clients list: its place in lists, its id, whose it is."""
    return _position(), Column("id", Text, nullable=False, unique=True), _project()


def _index_where(condition: str, name: str, *columns: str, unique: bool = False) -> Index:
    """Return an index of the rows that meet a condition."""
    return Index(name, *columns, unique=unique, sqlite_where=text(condition), postgresql_where=text(condition))


def _unique_name(name: str, *columns: str) -> Index:
    # a name is free again once its owner is removed
    return _index_where("removed_at IS NULL", name, *columns, unique=True)


organisations = Table(
    "organisations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("removed_at", Double),
    _unique_name("uq_organisations_name", "name"),
)

projects = Table(
    "projects",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organisation_id", Text, ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Double, nullable=False),
    Column("max_stored_bytes", BigInteger),
    Column("max_open_jobs", BigInteger),
    Column("max_tokens_per_day", BigInteger),
    Column("max_requests_per_minute", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("removed_at", Double),
    _unique_name("uq_projects_organisation_id_name", "organisation_id", "name"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, primary_key=True),
    _project(),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("scopes", _Json, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    Index(None, "project_id"),
)

page_sessions = Table(
    "page_sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("key_id", Text, ForeignKey("keys.id"), nullable=False),
    Column("begun_at", Double, nullable=False),
    Column("ends_at", Double, nullable=False),
    Index(None, "key_id", "begun_at"),
    Index(None, "ends_at"),
)

blobs = Table(
    "blobs",
    metadata,
    Column("name", Text, primary_key=True),
    _project(),
    Column("state", _words(BlobState), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Index(None, "project_id", "state", "bytes"),
    Index(None, "state", "changed_at"),
)

files = Table(
    "files",
    metadata,
    *_listed(),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("status", _words(FileStatus), nullable=False),
    Column("status_details", Text),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text),
    _blob(),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("deleted_at", Double),
    Index(None, "project_id", "position"),
    Index(None, "project_id", "purpose", "position"),
    Index(None, "expires_at"),
    Index(None, "deleted_at"),
    Index(None, "blob"),
)

_OPEN = "status IN ('validating_files', 'queued', 'running', 'pausing', 'paused')"

jobs = Table(
    "jobs",
    metadata,
    *_listed(),
    Column("kind", _words(JobKind), nullable=False),
    Column("status", _words(JobStatus), nullable=False),
    Column("base_model", Text, nullable=False),
    Column("method", Text),
    Column("suffix", Text),
    Column("seed", BigInteger, nullable=False),
    Column("training_file", Text),
    Column("validation_file", Text),
    Column("request", _Json, nullable=False),
    Column("hyperparameters", _Json, nullable=False),
    Column("metadata", _Json),
    Column("has_metadata", Boolean, nullable=False),
    Column("idempotency_key", Text),
    Column("created_by", Text),
    Column("run_directory", Text),
    Column("result_files", _Json, nullable=False),
    Column("error", _Json),
    Column("trained_tokens", BigInteger),
    Column("estimated_finish", Double),
    Column("fine_tuned_model", Text),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("num_events", Integer, nullable=False),
    Column("lease_owner", Text),
    Column("lease_token", BigInteger, nullable=False),
    Column("lease_expires_at", Double),
    UniqueConstraint("project_id", "idempotency_key"),
    Index(None, "project_id", "position"),
    Index(None, "project_id", "kind", "position"),
    Index(None, "project_id", "has_metadata", "position"),
    # what runners look through is small, however many jobs have ended, and in the order in which they are claimed
    _index_where(_OPEN, "ix_jobs_open", "position"),
    _index_where(_OPEN, "ix_jobs_open_of_project", "project_id"),
)

IS_OPEN = text(f"jobs.{_OPEN}")
"""Whether a job has not ended, in the words of the index: with parameters in their place, SQLite does not use it."""

job_metadata = Table(
    "job_metadata",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    _project(),
    Column("position", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("job_id", "key"),
    Index(None, "project_id", "key", "value", "position"),
)

job_events = Table(
    "job_events",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("id", Text, nullable=False, unique=True),
    _project(),
    Column("created_at", Double, nullable=False),
    Column("level", _words(EventLevel), nullable=False),
    Column("type", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", _Json),
    PrimaryKeyConstraint("job_id", "number"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    *_listed(),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("step_number", BigInteger, nullable=False),
    Column("model", Text, nullable=False, unique=True),
    Column("metrics", _Json, nullable=False),
    _blob(),
    Column("created_at", Double, nullable=False),
    Column("deleted_at", Double),
    UniqueConstraint("job_id", "step_number"),
    Index(None, "job_id", "position"),
    Index(None, "blob"),
)

models = Table(
    "models",
    metadata,
    *_listed(),
    Column("job_id", Text, ForeignKey("jobs.id")),
    Column("base_model", Text, nullable=False),
    _blob(),
    Column("created_at", Double, nullable=False),
    Column("deleted_at", Double),
    Index(None, "project_id", "position"),
    Index(None, "job_id"),
    Index(None, "blob"),
)

usage = Table(
    "usage",
    metadata,
    _project(),
    Column("day", Text, nullable=False),
    Column("kind", _words(UsageKind), nullable=False),
    Column("amount", Double, nullable=False),
    PrimaryKeyConstraint("project_id", "day", "kind"),
)

job_usage = Table(
    "job_usage",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    _project(),
    Column("kind", _words(UsageKind), nullable=False),
    Column("amount", Double, nullable=False),
    PrimaryKeyConstraint("job_id", "kind"),
)

audit_entries = Table(
    "audit_entries",
    metadata,
    _position(),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("project_id", Text),
    Column("target", Text, nullable=False),
    Column("details", _Json, nullable=False),
    Index(None, "project_id", "position"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("owner", Text),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("done_at", Double),
)
