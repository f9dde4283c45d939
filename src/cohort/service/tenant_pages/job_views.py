"""A job as pages show it, next to what its run's record says: its status, its events, what its owner may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.service.dashboard.plain_json import plain
from cohort.store.enums import JobStatus
from cohort.store.jobs.project_jobs import ProjectJobs
from cohort.store.jobs.transitions import OPEN
from cohort.store.records import Job, JobEvent

__all__ = ["JOB_CHANGES", "JobChange", "event_view", "job_view", "label_of"]

_GOING_ON = frozenset({JobStatus.QUEUED, JobStatus.RUNNING})
_HELD_UP = frozenset({JobStatus.PAUSING, JobStatus.PAUSED})


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """What a page asks of a whole job.

    Attributes:
        action: What it is called in answers.
        act: Does it, for the client that ``actor`` names.
        statuses: When it can be asked.
        does, undo, when: Texts of the preview.
    """

    action: str
    act: Callable[..., Job]
    statuses: frozenset[JobStatus]
    does: str
    undo: str
    when: str


JOB_CHANGES: Mapping[str, JobChange] = {
    "pause-job": JobChange(
        action="pause",
        act=ProjectJobs.pause,
        statuses=_GOING_ON,
        does="The job stops training and keeps its state: its GPU time goes to others.",
        undo="Resume the job: it goes on from there with the same result.",
        when="After the present step, once its state is saved; at once where it has not begun.",
    ),
    "resume-job": JobChange(
        action="resume",
        act=ProjectJobs.resume,
        statuses=_HELD_UP,
        does="The job waits for its turn again and goes on from where it stood, with the same result.",
        undo="Pause the job again.",
        when="As soon as a server has room for it.",
    ),
    "cancel-job": JobChange(
        action="cancel",
        act=ProjectJobs.cancel,
        statuses=OPEN,
        does="The job ends without a model. What it trained so far is lost to you.",
        undo="There is none: submit the task again.",
        when="At once.",
    ),
}


def label_of(job: Job) -> str:
    """Return what people call a job: the suffix they gave it, else its id."""
    return job.suffix or job.id


def job_view(job: Job, *, absent: str, may_change: bool) -> dict[str, Any]:
    """Return a job; times are seconds since 1970.

    Args:
        absent: Why its run directory is not here; empty where it is.
        may_change: Whether the viewer may ask anything of it.
    """
    can = [kind for kind, change in JOB_CHANGES.items() if may_change and job.status in change.statuses]
    view = {
        "id": job.id,
        "kind": str(job.kind),
        "status": str(job.status),
        "base_model": job.base_model,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "changed_at": job.changed_at,
        "estimated_finish": job.estimated_finish,
        "model": job.fine_tuned_model,
        "error": None if job.error is None else str(job.error.get("message", "")),
        "trained_tokens": job.trained_tokens,
        "absent": absent,
        "can": can,
    }
    return dict(plain(view))


def event_view(events: Sequence[JobEvent]) -> list[dict[str, Any]]:
    """Return events as a list of moments, levels and messages."""
    return [{"at": event.created_at, "level": str(event.level), "message": event.message} for event in events]
