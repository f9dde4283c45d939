"""Where the run of a job is: on this node, or on one whose folder this process sees as well."""

from __future__ import annotations

from pathlib import Path

from cohort.runs.directory import RunDirectory
from cohort.service.access.refusals import ServiceError
from cohort.store.records import Job

__all__ = ["run_of"]


def run_of(job: Job, *, nodes: Path) -> Path:
    """Return the run directory of a job that has begun to train.

    Raises:
        ServiceError: it has not, or its node's folder is elsewhere.
    """
    # the id comes from the database, and is no path that a client could choose
    for runs in sorted(nodes.glob("*/runs")):
        directory = runs / job.id
        if RunDirectory(directory).database.is_file():
            return directory
    if job.started_at is None:
        text = f"{job.id} has not begun to train: it is {job.status}."
        raise ServiceError(text, status=409, code="not_begun", retry_seconds=5)
    text = f"The run of {job.id} is on another server, or was removed when its time was over."
    raise ServiceError(text, status=404, code="run_elsewhere")
