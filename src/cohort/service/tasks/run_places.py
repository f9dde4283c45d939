"""Where the run of a job is: on this node, or on one whose folder this process sees as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cohort.runs.directory import RunDirectory
from cohort.service.access.refusals import ServiceError
from cohort.store.jobs.transitions import ENDED
from cohort.store.records import Job

__all__ = ["absence", "find_run", "run_of", "run_places"]


def run_places(nodes: Path) -> tuple[Path, ...]:
    """Return the folders of runs that this process sees, of all nodes."""
    return tuple(sorted(nodes.glob("*/runs")))


def find_run(job: Job, *, places: Sequence[Path]) -> Path | None:
    """Return the run directory of a job; None if it has not begun to train, or its directory is not here."""
    # the id comes from the database, and is no path that a client could choose
    found = (place / job.id for place in places)
    return next((directory for directory in found if RunDirectory(directory).database.is_file()), None)


def absence(job: Job, *, places: Sequence[Path]) -> str:
    """Return why a job has no run directory among ``places``, and what to do."""
    if job.started_at is None:
        return f"{job.id} has not begun to train: it is {job.status.replace('_', ' ')}."
    node = (job.run_directory or "").partition("/")[0]
    if any(place.parent.name == node for place in places):
        if job.status in ENDED:
            return f"{job.id} ended before its first step, or its run directory was removed when its time was over."
        return f"{job.id} is being prepared: its base model and rows are read."
    where = f"the server {node!r}" if node and node != job.id else "another server"
    if job.status in ENDED:
        return (
            f"The run of {job.id} is on {where}, or was removed when its time was over. Ask that server, or the "
            "service's administrators."
        )
    return (
        f"The run of {job.id} is on {where}, whose folder this server does not see. Ask that server, or have the "
        "servers share the folder `nodes`."
    )


def run_of(job: Job, *, nodes: Path) -> Path:
    """Return the run directory of a job that has begun to train.

    Raises:
        ServiceError: it has not, or its node's folder is elsewhere.
    """
    places = run_places(nodes)
    found = find_run(job, places=places)
    if found is not None:
        return found
    if job.started_at is None:
        raise ServiceError(absence(job, places=places), status=409, code="not_begun", retry_seconds=5)
    raise ServiceError(absence(job, places=places), status=404, code="run_elsewhere")
