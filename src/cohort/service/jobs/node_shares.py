"""What tenants had of this node, over restarts: whose job is next is decided by it.

While a job runs it is charged with its run's own seconds, at least with what a job is expected to take; at its end with
its own alone. What its run had trained before this node took it was charged then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from cohort.core.durable_files import write_text
from cohort.core.errors import StorageFullError
from cohort.scheduling.shares.jobs import JobShares, WaitingJob

__all__ = ["EXPECTED_SECONDS", "NodeShares"]

_log = logging.getLogger(__name__)

EXPECTED_SECONDS = 60.0
"""Of a job whose time is not known yet; its charge is corrected as it runs."""


class NodeShares:
    """Shares of the jobs of one node, kept in a file. Use it from one thread."""

    def __init__(self, path: Path) -> None:
        """Go on from ``path``; without it all tenants stand alike."""
        self._path = path
        self._shares = JobShares()
        # by job that runs: seconds of its run when it was taken
        self._before: dict[str, float] = {}
        # a job that is settled after a restart is charged by the weight it was charged by before
        self._weights: dict[str, float] = {}
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            weights = {str(tenant): float(weight) for tenant, weight in record["weights"].items()}
            self._shares, self._weights = JobShares.from_record(record["shares"], weights=weights), weights
            self._before = {str(job): float(seconds) for job, seconds in record["before"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            _log.warning("shares begin even, since %s cannot be read: %s", path, error)
        self._kept = self._record()

    def weigh(self, tenant: str, weight: float) -> None:
        self._weights[tenant] = weight
        self._shares.accounts.set_weight(tenant, weight)

    def order(self, waiting: Sequence[WaitingJob]) -> list[WaitingJob]:
        """Return the jobs in the order in which they should be taken."""
        return self._shares.order(waiting)

    def started(self, job_id: str, *, tenant: str, run_seconds: float) -> None:
        """Charge a job that this node takes; one that it had when it was killed goes on as it was charged.

        Args:
            run_seconds: What its run has trained so far.
        """
        if job_id not in self._shares.running:
            self._before[job_id] = run_seconds
            self._shares.started(WaitingJob(job_id=job_id, tenant=tenant, gpu_seconds=EXPECTED_SECONDS))

    def corrected(self, job_id: str, *, run_seconds: float) -> None:
        """Charge a job that trains with what it took, once that is more than was expected."""
        seconds = run_seconds - self._before.get(job_id, 0.0)
        self._shares.corrected(job_id, gpu_seconds=max(seconds, EXPECTED_SECONDS))

    def ended(self, job_id: str, *, run_seconds: float) -> None:
        """Charge a job that ended here, or was given back, with what it took."""
        before = self._before.pop(job_id, 0.0)
        self._shares.ended(job_id, gpu_seconds=max(run_seconds - before, 0.0))

    def settle(self, held: Collection[str]) -> None:
        """Leave jobs that this node lost while it was down as they were charged."""
        for job_id, seconds in self._shares.running.items():
            if job_id not in held:
                self._before.pop(job_id, None)
                self._shares.ended(job_id, gpu_seconds=seconds)

    def keep(self) -> None:
        """Write what changed; without room on the disk a restart knows what was written last."""
        if (record := self._record()) == self._kept:
            return
        try:
            write_text(self._path, record)
        except (StorageFullError, OSError) as error:
            _log.warning("shares could not be written: %s", error)
        else:
            self._kept = record

    def _record(self) -> str:
        shares = self._shares.to_record()
        known = {*shares["tags"], *(tenant for tenant, _ in shares["running"].values())}
        weights = {tenant: weight for tenant, weight in self._weights.items() if tenant in known}
        return json.dumps({"shares": shares, "before": self._before, "weights": weights})
