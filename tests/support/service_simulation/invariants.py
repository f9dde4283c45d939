"""What must hold after every commit, whatever went wrong before it: read from the tables, not from the code that wrote.

A broken invariant names the seed: the history can be played again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from cohort.store.database import Database
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.jobs.transitions import ENDED, may_become
from cohort.store.tables import job_events, job_usage, jobs, models, projects, usage

from .world import World

SUCCESS = "The job has successfully completed"


class BrokenInvariantError(AssertionError):
    """The service did what it must never do."""


@dataclass(frozen=True, kw_only=True)
class SeenJob:
    """What was seen of a job last."""

    project: str
    status: JobStatus
    token: int
    num_events: int


class Invariants:
    """Looks at the tables after each commit."""

    def __init__(self, world: World, database: Database) -> None:
        self._world, self._database = world, database
        self.seen: dict[str, SeenJob] = {}
        # by job: the token of the runner that is writing now
        self.writing: tuple[str, int] | None = None

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            raise BrokenInvariantError(f"seed {self._world.seed} at {self._world.now:.3f} s: {text}")

    def look(self) -> None:
        """Compare the tables with what was seen before."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(jobs.c.id, jobs.c.project_id, jobs.c.status, jobs.c.lease_token, jobs.c.num_events)
            ).all()
            quotas = _pairs(connection, select(projects.c.id, projects.c.max_open_jobs))
        found = {
            row.id: SeenJob(project=row.project_id, status=row.status, token=row.lease_token, num_events=row.num_events)
            for row in rows
        }
        for job_id, before in self.seen.items():
            self.require(job_id in found, f"job {job_id} is gone")
            now = found[job_id]
            legal = now.status is before.status or now.status in may_become(before.status)
            self.require(legal, f"job {job_id} went from {before.status} to {now.status}")
            self.require(now.token >= before.token, f"the token of {job_id} went back")
            self.require(now.num_events >= before.num_events, f"events of {job_id} are gone")
            self.require(now.project == before.project, f"job {job_id} changed its owner")
        if self.writing is not None:
            job_id, token = self.writing
            now, before = found[job_id], self.seen[job_id]
            # its claim may end with what it writes, but nobody may have had another one before
            self.require(before.token == token, f"a runner with claim {token} wrote to {job_id}, which has {now.token}")
        open_jobs = Counter(job.project for job in found.values() if job.status not in ENDED)
        for project, count in open_jobs.items():
            most = quotas[project]
            self.require(most is None or count <= most, f"project {project} has {count} open jobs of {most}")
        self.seen = found

    @property
    def num_open(self) -> int:
        return sum(job.status not in ENDED for job in self.seen.values())

    def look_at_results(self, tokens_of: dict[str, int]) -> None:
        """Check what jobs left: each ended once, has one model, and was charged once."""
        with self._database.read() as connection:
            names = _pairs(connection, select(models.c.job_id, func.count()).group_by(models.c.job_id))
            ended = select(job_events.c.job_id, func.count()).where(job_events.c.message == SUCCESS)
            ends = _pairs(connection, ended.group_by(job_events.c.job_id))
            tokens = job_usage.c.kind == UsageKind.TRAINED_TOKENS
            charged = _pairs(connection, select(job_usage.c.job_id, job_usage.c.amount).where(tokens))
            of_all = connection.scalar(select(func.sum(usage.c.amount)).where(usage.c.kind == UsageKind.TRAINED_TOKENS))
            numbers = connection.execute(select(job_events.c.job_id, job_events.c.number)).all()
        for job_id, job in self.seen.items():
            has_succeeded, num_models = job.status is JobStatus.SUCCEEDED, names.get(job_id, 0)
            self.require(num_models == has_succeeded, f"{job_id} is {job.status}, with {num_models} models")
            self.require(ends.get(job_id, 0) == has_succeeded, f"{job_id} ended {ends.get(job_id)} times")
            most = tokens_of[job_id]
            paid = charged.get(job_id, 0)
            self.require(
                paid == most if has_succeeded else paid <= most, f"{job_id} was charged {paid} of {most} tokens"
            )
        self.require((of_all or 0) == sum(charged.values()), "projects were charged other than their jobs")
        by_job = Counter(row.job_id for row in numbers)
        for job_id, job in self.seen.items():
            self.require(by_job[job_id] == job.num_events, f"{job_id} has events missing or twice")


def _pairs(connection: Connection, statement: Select[Any]) -> dict[str, Any]:
    return dict(connection.execute(statement).all())
