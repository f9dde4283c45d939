"""Jobs of a node are paused before its disk is full, and go on by themselves once there is room."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cohort.service.jobs.held_job import HeldJob
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_parts import JobParts
from cohort.service.jobs.room import Room
from cohort.store.enums import JobStatus
from cohort.store.errors import IllegalTransitionError, LeaseLostError, StorageFull, StoreError, StoreUnavailable

__all__ = ["keep_room"]

_log = logging.getLogger(__name__)


def keep_room(room: Room, parts: JobParts, jobs: Mapping[str, HeldJob]) -> None:
    """Look at the disk; pause what trains where it is nearly full, and resume what was paused so where there is room.

    Args:
        jobs: Those that the node has, by id.

    Raises:
        StorageFull, StoreUnavailable: try again.
    """
    if not room.look():
        for job in jobs.values():
            try:
                job.pause_for_room()
            except (LeaseLostError, IllegalTransitionError) as error:
                # its client has cancelled it meanwhile; this turn sees that
                _log.info("%s", error)
        return
    for folder in JobFolder.all_in(parts.folders):
        project_id, own = folder.notes.get("waits_for_room"), jobs.get(folder.path.name)
        if project_id is None:
            continue
        if own is not None:
            # killed before it was paused: a pause that follows is its client's
            if own.job.status is JobStatus.RUNNING:
                folder.note(waits_for_room=None)
            continue
        try:
            parts.store.project(project_id).jobs.resume(folder.path.name)
        except StoreError as error:
            if isinstance(error, StoreUnavailable | StorageFull):
                raise
            # its client has cancelled or resumed it meanwhile
        folder.note(waits_for_room=None)
