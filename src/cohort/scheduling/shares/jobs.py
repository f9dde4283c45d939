"""Whose job is next on a free worker: the one of the tenant with the least GPU time over its weight.

A job is charged when it starts, with what it is expected to take, and corrected when it ends. A tenant that submits a
thousand jobs therefore waits behind one that submits its first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.scheduling.shares.accounts import Costed, ShareAccounts

__all__ = ["JobShares", "WaitingJob"]


@dataclass(frozen=True, kw_only=True)
class WaitingJob:
    """A job that waits for a worker.

    Attributes:
        gpu_seconds: What it is expected to take, GPUs times seconds.
        priority: Among the jobs of its tenant only, higher first: no tenant overtakes others by calling all its jobs
            urgent.
    """

    job_id: str
    tenant: str
    gpu_seconds: float
    priority: int = 0


class JobShares:
    """Orders the jobs of all tenants on one pool of workers."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Begin without a charge.

        Args:
            weights: By tenant; those left out have weight 1.

        Raises:
            InputError: a weight is not a finite number above 0.
        """
        self._accounts = ShareAccounts(weights)
        # by job that runs: its tenant and what it was charged so far
        self._running: dict[str, tuple[str, float]] = {}

    @property
    def accounts(self) -> ShareAccounts:
        return self._accounts

    @property
    def running(self) -> dict[str, float]:
        """What each job that runs was charged so far."""
        return {job: seconds for job, (_, seconds) in self._running.items()}

    def order(self, waiting: Sequence[WaitingJob]) -> list[WaitingJob]:
        """Return the jobs in the order in which they should get workers.

        Args:
            waiting: In the order in which they were submitted.
        """
        # with jobs that run, a queue that is empty for a moment is no reason to forget who had what
        if waiting or not self._running:
            self._accounts.advance({job.tenant for job in waiting})
        # sorting is stable, so jobs of equal priority stay in the order of submission
        own_first = sorted(waiting, key=lambda job: -job.priority)
        costs = [Costed(tenant=job.tenant, seconds=job.gpu_seconds) for job in own_first]
        return [own_first[number] for number in self._accounts.order(costs)]

    def next_job(self, waiting: Sequence[WaitingJob]) -> WaitingJob | None:
        """Return the job that should get the next free worker; None when none waits."""
        ordered = self.order(waiting)
        return ordered[0] if ordered else None

    def started(self, job: WaitingJob) -> None:
        """Charge a job that got a worker."""
        self._charge(job.job_id, job.tenant, job.gpu_seconds)

    def corrected(self, job_id: str, *, gpu_seconds: float) -> None:
        """Charge a job that runs with what is now expected of it instead of what was.

        A job that is not known to run changes nothing: a restart may have forgotten it.
        """
        if job_id in self._running:
            tenant, _ = self._running[job_id]
            self._charge(job_id, tenant, gpu_seconds)

    def ended(self, job_id: str, *, gpu_seconds: float) -> None:
        """Charge a job that ended, or lost its worker, with what it took."""
        self.corrected(job_id, gpu_seconds=gpu_seconds)
        self._running.pop(job_id, None)

    def _charge(self, job_id: str, tenant: str, gpu_seconds: float) -> None:
        _, before = self._running.get(job_id, (tenant, 0.0))
        self._accounts.charge({tenant: gpu_seconds - before})
        self._running[job_id] = (tenant, gpu_seconds)

    def to_record(self) -> dict[str, Any]:
        """Return all that a restart needs, as values that JSON keeps exactly; weights are the caller's to keep."""
        running = {job: [tenant, seconds] for job, (tenant, seconds) in sorted(self._running.items())}
        return self._accounts.to_record() | {"running": running}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, weights: Mapping[str, float] | None = None) -> JobShares:
        shares = cls()
        shares._accounts = ShareAccounts.from_record(record, weights=weights)
        shares._running = {
            str(job): (str(tenant), float(seconds)) for job, (tenant, seconds) in record["running"].items()
        }
        return shares
