"""Whose task is next in a queue that tenants share: their weighted shares of its GPU time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.scheduling.placement.cluster_events import ActiveTask, ClusterState
from cohort.scheduling.placement.records import TaskRequest
from cohort.scheduling.shares.jobs import JobShares, WaitingJob

__all__ = ["FairTurns"]


class FairTurns:
    """Follows the tasks of a queue and charges their tenants; a queue in which no task names a tenant has none."""

    def __init__(self, record: Mapping[str, Any] | None = None) -> None:
        """Go on from what :meth:`to_record` gave an earlier dispatcher."""
        self._shares = JobShares() if record is None else JobShares.from_record(record)
        # the tasks that hold GPUs, as they were charged
        self._active: dict[str, ActiveTask] = {}
        # those that had GPUs when the dispatcher before this one died
        self._orphans = set(self._shares.running)

    @property
    def has_active(self) -> bool:
        return bool(self._active)

    def order(self, waiting: Sequence[TaskRequest]) -> list[TaskRequest]:
        """Return waiting tasks in the order in which they should have GPUs."""
        by_id = {task.task_id: task for task in waiting}
        for tenant, weight in {task.tenant: task.weight for task in waiting}.items():
            self._shares.accounts.set_weight(tenant, weight)
        jobs = [
            WaitingJob(
                job_id=task.task_id,
                tenant=task.tenant,
                gpu_seconds=min(option.num_gpus * option.seconds for option in task.options),
                priority=task.priority,
            )
            for task in waiting
        ]
        return [by_id[job.job_id] for job in self._shares.order(jobs)]

    def follow(self, state: ClusterState) -> None:
        """Charge what started, correct what is expected to end at another time, and settle what gave its GPUs up."""
        active = {task.request.task_id: task for task in state.active}
        # one that goes on is charged with what is then left of it; one that ended meanwhile stays as it was charged
        for name in self._orphans - active.keys() - {task.task_id for task in (*state.waiting, *state.stranded)}:
            self._shares.ended(name, gpu_seconds=self._shares.running[name])
        self._orphans.clear()
        for name in self._active.keys() - active.keys():
            gone = self._active[name]
            seconds = max(state.now_seconds - gone.started_seconds, 0.0)
            self._shares.ended(name, gpu_seconds=seconds * len(gone.gpu_ids))
        # tasks that share an executor share its time
        sharing = Counter(task.gpu_ids for task in state.active)
        for name, task in active.items():
            seconds = task.expected_seconds * len(task.gpu_ids) / sharing[task.gpu_ids]
            if name not in self._active:
                self._shares.started(WaitingJob(job_id=name, tenant=task.request.tenant, gpu_seconds=seconds))
            else:
                self._shares.corrected(name, gpu_seconds=seconds)
        self._active = active

    def to_record(self) -> dict[str, Any]:
        """Return what a restart needs, as JSON."""
        return self._shares.to_record()
