"""Files, jobs, events, checkpoints and models as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from cohort.store.records import Checkpoint, Job, JobEvent, Model, StoredFile

__all__ = ["checkpoint_body", "event_body", "file_body", "job_body", "model_body"]


def file_body(file: StoredFile) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": str(file.status),
        "status_details": file.status_details,
    }
    if file.expires_at is not None:
        body["expires_at"] = int(file.expires_at)
    return body


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


def job_body(job: Job, *, organisation_id: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": job.id,
        "object": "fine_tuning.job",
        "created_at": int(job.created_at),
        "error": job.error,
        "fine_tuned_model": job.fine_tuned_model,
        "finished_at": _whole(job.finished_at),
        "hyperparameters": dict(job.hyperparameters),
        "model": job.base_model,
        "organization_id": organisation_id,
        "result_files": list(job.result_files),
        "seed": job.seed,
        "status": str(job.status),
        "trained_tokens": job.trained_tokens,
        "training_file": job.training_file or "",
        "validation_file": job.validation_file,
        "estimated_finish": _whole(job.estimated_finish),
        "integrations": [],
        "metadata": None if job.metadata is None else dict(job.metadata),
    }
    if job.method is not None:
        body["method"] = {"type": job.method, job.method: {"hyperparameters": dict(job.hyperparameters)}}
    return body


def event_body(event: JobEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at),
        "level": str(event.level),
        "message": event.message,
        "type": event.type,
        "data": event.data or {},
    }


def checkpoint_body(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.created_at),
        "fine_tuned_model_checkpoint": checkpoint.model,
        "fine_tuning_job_id": checkpoint.job_id,
        "metrics": {"step": checkpoint.step_number, **checkpoint.metrics},
        "step_number": checkpoint.step_number,
    }


def model_body(model: Model, *, owner: str) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": int(model.created_at),
        "owned_by": owner,
        "root": model.base_model,
        "parent": model.base_model,
    }
