"""Rows as the rest of Cohort sees them. A record's fields are columns of its table, read by one rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sqlalchemy import Row

from cohort.store.enums import BlobState, EventLevel, FileStatus, JobKind, JobStatus, KeyScope, UsageKind

__all__ = [
    "AuditEntry",
    "Blob",
    "Checkpoint",
    "Job",
    "JobEvent",
    "Key",
    "Model",
    "Organisation",
    "Project",
    "StoredFile",
    "UsageRow",
    "read_record",
]

Json = Mapping[str, Any]
_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True)
class Organisation:
    """Who pays: one or more projects."""

    id: str
    name: str
    created_at: float


@dataclass(frozen=True, kw_only=True)
class Project:
    """A tenant: nothing of one project is visible to another, also of the same organisation.

    Attributes:
        weight: Its share of the GPUs' time is its weight over the weights of all who have work.
        max_stored_bytes: Most bytes of files, checkpoints and models; None sets no bound, as of the next three.
        max_open_jobs: Most jobs that have not ended.
        max_tokens_per_day: Most tokens, prompts and training alike, of a day in UTC.
        max_requests_per_minute: Most HTTP requests of all its keys together.
    """

    id: str
    organisation_id: str
    name: str
    weight: float
    max_stored_bytes: int | None
    max_open_jobs: int | None
    max_tokens_per_day: int | None
    max_requests_per_minute: int | None
    created_at: float


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key without its secret.

    Attributes:
        prefix: How the key's text begins, for people who look for the one they have.
        scopes: What it opens.
    """

    id: str
    project_id: str
    name: str
    prefix: str
    scopes: frozenset[KeyScope]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Bytes under a random name; a name can stand for a file or for a folder of files (an adapter)."""

    name: str
    project_id: str
    state: BlobState
    bytes: int
    sha256: str | None
    created_at: float


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file that a tenant uploaded, or that a job left for it."""

    id: str
    project_id: str
    filename: str
    purpose: str
    status: FileStatus
    status_details: str | None
    bytes: int
    sha256: str | None
    blob: str | None
    created_at: float
    expires_at: float | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A fine-tuning job or a task.

    Attributes:
        position: Grows with each job of the store; for lists and turns, not for clients.
        request: What the client sent.
        hyperparameters: What the job's answer shows: as sent, ``auto`` filled in once it is decided.
        created_by: Id of the key.
        num_events: How many events it has.
        lease_token: Grows with each claim: a runner with a smaller one has lost the job.
    """

    position: int
    id: str
    project_id: str
    kind: JobKind
    status: JobStatus
    base_model: str
    method: str | None
    suffix: str | None
    seed: int
    training_file: str | None
    validation_file: str | None
    request: Json
    hyperparameters: Json
    metadata: Mapping[str, str] | None
    created_by: str | None
    run_directory: str | None
    result_files: tuple[str, ...]
    error: Json | None
    trained_tokens: int | None
    estimated_finish: float | None
    fine_tuned_model: str | None
    created_at: float
    changed_at: float
    started_at: float | None
    finished_at: float | None
    num_events: int
    lease_owner: str | None
    lease_token: int
    lease_expires_at: float | None


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """Something that happened to a job; ``number`` counts its events from 1 without gaps."""

    id: str
    job_id: str
    number: int
    created_at: float
    level: EventLevel
    type: str
    message: str
    data: Json | None


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An adapter as it was after a step; ``model`` is the name under which it is served."""

    id: str
    project_id: str
    job_id: str
    step_number: int
    model: str
    metrics: Json
    blob: str | None
    created_at: float


@dataclass(frozen=True, kw_only=True)
class Model:
    """A finished adapter; its id is the name under which it is served."""

    id: str
    project_id: str
    job_id: str | None
    base_model: str
    blob: str | None
    created_at: float


@dataclass(frozen=True, kw_only=True)
class UsageRow:
    """How much of one thing a project used on one day (``2026-10-31``, UTC)."""

    project_id: str
    day: str
    kind: UsageKind
    amount: float


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """What an administrator did, and as whom."""

    position: int
    at: float
    actor: str
    action: str
    project_id: str | None
    target: str
    details: Json


def read_record(kind: type[_Record], row: Row[Any]) -> _Record:
    """Return the record that a row of its table holds."""
    values = {field.name: row._mapping[field.name] for field in fields(kind)}  # type: ignore[arg-type]
    if kind is Key:
        values["scopes"] = frozenset(map(KeyScope, values["scopes"]))
    if kind is Job:
        values["result_files"] = tuple(values["result_files"])
    return kind(**values)
