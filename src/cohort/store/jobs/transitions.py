"""Which status of a job may follow which.

Source: the statuses are those of OpenAI's fine-tuning jobs, with ``pausing`` and ``paused`` of its documentation.
"""

from __future__ import annotations

from cohort.store.enums import JobStatus

__all__ = ["CLIENT_ACTIONS", "ENDED", "HELD", "OPEN", "WAITING", "may_become", "sources_of"]

_VALIDATING, _QUEUED, _RUNNING = JobStatus.VALIDATING_FILES, JobStatus.QUEUED, JobStatus.RUNNING
_PAUSING, _PAUSED = JobStatus.PAUSING, JobStatus.PAUSED
_SUCCEEDED, _FAILED, _CANCELLED = JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED

_NEXT: dict[JobStatus, frozenset[JobStatus]] = {
    _VALIDATING: frozenset({_QUEUED, _FAILED, _CANCELLED}),
    _QUEUED: frozenset({_RUNNING, _PAUSED, _FAILED, _CANCELLED}),
    # back to the queue: its runner is drained, or was lost
    _RUNNING: frozenset({_QUEUED, _PAUSING, _SUCCEEDED, _FAILED, _CANCELLED}),
    # it may be done before it could pause
    _PAUSING: frozenset({_RUNNING, _PAUSED, _SUCCEEDED, _FAILED, _CANCELLED}),
    _PAUSED: frozenset({_QUEUED, _FAILED, _CANCELLED}),
    _SUCCEEDED: frozenset(),
    _FAILED: frozenset(),
    _CANCELLED: frozenset(),
}

OPEN = frozenset(status for status, following in _NEXT.items() if following)
"""Statuses of jobs that have not ended."""
ENDED = frozenset(JobStatus) - OPEN
WAITING = frozenset({_VALIDATING, _QUEUED})
"""Statuses of jobs that wait for a runner."""
HELD = frozenset({_RUNNING, _PAUSING})
"""Statuses of jobs that a runner has, or had when it was lost."""
CLIENT_ACTIONS = {
    _PAUSING: "pause",
    _PAUSED: "pause",
    _QUEUED: "resume",
    _RUNNING: "resume",
    _CANCELLED: "cancel",
}
"""What clients ask for, by the status that a job gets."""


def may_become(status: JobStatus) -> frozenset[JobStatus]:
    return _NEXT[status]


def sources_of(wanted: JobStatus) -> frozenset[JobStatus]:
    """Return the statuses from which a job may become ``wanted``."""
    return frozenset(status for status, following in _NEXT.items() if wanted in following)
