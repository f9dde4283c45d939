"""Changes of a job's trials that a key asks for: checked, written to the audit log, then handed to the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cohort.runs.requests.asking import Asked, ask, check_all
from cohort.runs.requests.trial_requests import TrialRequest
from cohort.store.records import Job
from cohort.store.storable import check_storable
from cohort.store.store import Store
from cohort.store.tenants.audit import record_action

__all__ = ["change_trial"]


def change_trial(store: Store, job: Job, change: TrialRequest, *, run: Path, actor: str, wait_seconds: float) -> Asked:
    """Hand a change in and wait for the run's answer.

    Args:
        run: The job's run directory.
        actor: Who asks, for the audit log and for the run's record.

    Raises:
        InputError: the run refuses it.
        StoreError: it cannot be written to the audit log; nothing was handed in.
        StorageFullError: the disk is full; nothing was handed in.
    """
    check_storable({"values": change.values})
    check_all(run, [change])
    details: dict[str, Any] = {} if change.trial_id is None else {"trial": change.trial_id}
    if change.values:
        details["values"] = dict(change.values)
    if change.warm_start:
        details["warm_start"] = True
    with store.database.write() as connection:
        # before it is asked: what a run does is in the log, also when this process dies meanwhile
        record_action(
            connection,
            store.database,
            actor=actor,
            action=f"trial.{change.kind.value}",
            target=job.id,
            project_id=job.project_id,
            details=details,
        )
    return ask(run, replace(change, who=actor), wait_seconds=wait_seconds)
