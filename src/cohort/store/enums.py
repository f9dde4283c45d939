"""The words that columns hold: states, kinds and scopes, spelt as the APIs spell them."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["BlobState", "EventLevel", "FileStatus", "JobKind", "JobStatus", "KeyScope", "UsageKind"]


class JobStatus(StrEnum):
    """Where a job stands; :mod:`cohort.store.jobs.transitions` says what may follow what."""

    VALIDATING_FILES = "validating_files"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobKind(StrEnum):
    """Which API a job came through."""

    FINE_TUNING = "fine_tuning"
    TASK = "task"


class EventLevel(StrEnum):
    """How serious an event of a job is."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class FileStatus(StrEnum):
    """Where a file stands."""

    UPLOADED = "uploaded"
    PROCESSED = "processed"
    ERROR = "error"


class BlobState(StrEnum):
    """A blob is named in the database before its first byte is written, and until its last one is gone."""

    WRITING = "writing"
    KEPT = "kept"
    REMOVED = "removed"


class KeyScope(StrEnum):
    """What a key opens."""

    INFERENCE = "inference"
    FINE_TUNING = "fine_tuning"
    TINKER = "tinker"
    TASKS = "tasks"
    METRICS = "metrics"
    ADMIN = "admin"


class UsageKind(StrEnum):
    """What is counted of a project, by day."""

    PROMPT_TOKENS = "prompt_tokens"
    COMPLETION_TOKENS = "completion_tokens"
    TRAINED_TOKENS = "trained_tokens"
    EVALUATED_TOKENS = "evaluated_tokens"
    GPU_SECONDS = "gpu_seconds"
    BYTE_DAYS = "byte_days"
    REQUESTS = "requests"
