"""Tasks as Cohort's own clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.store.enums import JobKind, JobStatus
from cohort.store.records import Job

__all__ = ["planned_job", "task_body"]


def task_body(job: Job) -> dict[str, Any]:
    """Return a job of either API as a task."""
    return {
        "id": job.id,
        "object": "cohort.task",
        "kind": str(job.kind),
        "status": str(job.status),
        "base_model": job.base_model,
        "created_at": int(job.created_at),
        "started_at": None if job.started_at is None else int(job.started_at),
        "finished_at": None if job.finished_at is None else int(job.finished_at),
        "estimated_finish": None if job.estimated_finish is None else int(job.estimated_finish),
        "error": job.error,
        "model": job.fine_tuned_model,
        "result_files": list(job.result_files),
        "trained_tokens": job.trained_tokens,
        "best": dict(job.hyperparameters) if job.status is JobStatus.SUCCEEDED else None,
        "suffix": job.suffix,
        "metadata": None if job.metadata is None else dict(job.metadata),
        "task": job.request.get("task") if job.kind is JobKind.TASK else None,
    }


def planned_job(task: Mapping[str, Any], *, base: str) -> Job:
    """Return a task as the job that it would be, for what prepares jobs."""
    return Job(
        position=0,
        id="task",
        project_id="",
        kind=JobKind.TASK,
        status=JobStatus.VALIDATING_FILES,
        base_model=base,
        method=None,
        suffix=None,
        seed=0,
        training_file=None,
        validation_file=None,
        request={"task": dict(task)},
        hyperparameters={},
        metadata=None,
        created_by=None,
        run_directory=None,
        result_files=(),
        error=None,
        trained_tokens=None,
        estimated_finish=None,
        fine_tuned_model=None,
        created_at=0.0,
        changed_at=0.0,
        started_at=None,
        finished_at=None,
        num_events=0,
        lease_owner=None,
        lease_token=0,
        lease_expires_at=None,
    )
