"""Nodes of a simulated service: each claims jobs in turn by share, trains them step by step, and may die or freeze.

A node keeps on its disk what a real one does: its claims, what its tenants were charged, and a checkpoint of each run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cohort.scheduling.shares.jobs import JobShares, WaitingJob
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import IllegalTransitionError, LeaseLostError, StorageFull, StoreUnavailable
from cohort.store.jobs.claims import Claim, NewCheckpoint, NewModel
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.transitions import ENDED, HELD
from cohort.store.records import Job
from cohort.store.store import Store

from .invariants import SUCCESS, Invariants
from .world import ProcessDied, World

LEASE_SECONDS = 30.0
TURN_SECONDS = 4.0
TOKENS_A_STEP = 100
_MOST_JOBS = 3
_EXPECTED_SECONDS = 40.0
_VALIDATING = (JobStatus.VALIDATING_FILES,)


def steps_of(job_id: str) -> int:
    """Return how many steps a job trains: a function of its id, so that every run of it is the same."""
    return 4 + sum(map(ord, job_id)) % 12


@dataclass(kw_only=True)
class Disk:
    """What survives a node's death: of the node itself, and the run directories that all nodes see."""

    claims: dict[str, Claim] = field(default_factory=dict)
    shares: dict[str, Any] | None = None


@dataclass(kw_only=True)
class HeldRun:
    """A job that a node has, in its memory."""

    claim: Claim
    job: Job
    steps: int
    seconds: float = 0.0


class Node:
    """One node; its process dies and begins again."""

    def __init__(
        self, world: World, store: Store, invariants: Invariants, *, name: str, checkpoints: dict[str, int]
    ) -> None:
        self._world, self._store, self._invariants, self.name = world, store, invariants, name
        # run directories lie on a disk that all nodes see
        self._checkpoints = checkpoints
        self.disk = Disk()
        self.skipped: dict[str, int] = {}
        self._begin()
        world.after(TURN_SECONDS, self._wake)

    def _begin(self) -> None:
        self._held: dict[str, HeldRun] = {}
        self._shares = JobShares() if self.disk.shares is None else JobShares.from_record(self.disk.shares)
        self._renewed_at = self._world.now
        self._is_new = True

    def _wake(self) -> None:
        pause = TURN_SECONDS
        try:
            self._turn()
        except (StoreUnavailable, StorageFull):
            pass
        except ProcessDied:
            self._world.say(f"{self.name} dies with {len(self._held)} jobs")
            self._begin()
            pause = self._world.chance.choice((2.0, 20.0, 90.0))
        if not self._world.is_calm and self._world.chance.random() < 0.03:
            # a machine that swaps, or a stopped process: its memory says that its claims are good
            pause = self._world.chance.choice((25.0, 70.0))
            self._world.say(f"{self.name} freezes")
        self._world.after(pause, self._wake)

    def _turn(self) -> None:
        if not self._world.is_calm and self._world.chance.random() < 0.01:
            raise ProcessDied
        if self._is_new:
            self._reclaim()
        if self._world.now - self._renewed_at >= LEASE_SECONDS / 3:
            self._renewed_at = self._world.now
            self._renew()
        for run in list(self._held.values()):
            try:
                self._step(run)
            except LeaseLostError:
                self._lose(run)
            except IllegalTransitionError as error:
                # its client paused or resumed it since this node looked
                self._world.say(f"{self.name} looks again: {error}")
                self._renewed_at = float("-inf")
        self._claim_more()

    def _reclaim(self) -> None:
        for job_id, claim in sorted(self.disk.claims.items()):
            if job_id in self._held:
                continue
            try:
                job = self._store.claims.renew(claim, seconds=LEASE_SECONDS)
            except LeaseLostError:
                del self.disk.claims[job_id]
                continue
            self._hold(claim, job)
        self._is_new = False

    def _renew(self) -> None:
        for run in list(self._held.values()):
            try:
                run.job = self._store.claims.renew(run.claim, seconds=LEASE_SECONDS)
            except LeaseLostError:
                self._lose(run)

    def _lose(self, run: HeldRun) -> None:
        self._world.say(f"{self.name} has lost {run.claim.job_id[-6:]}")
        self._drop(run)

    def _drop(self, run: HeldRun) -> None:
        self._held.pop(run.claim.job_id, None)
        self.disk.claims.pop(run.claim.job_id, None)
        self._shares.ended(run.claim.job_id, gpu_seconds=run.seconds)
        self.disk.shares = self._shares.to_record()

    def _hold(self, claim: Claim, job: Job) -> None:
        self._world.say(f"{self.name} has {job.id[-6:]}, claim {claim.token}, {job.status}")
        self.disk.claims[job.id] = claim
        self._held[job.id] = HeldRun(claim=claim, job=job, steps=self._checkpoints.get(job.id, 0))
        if job.status is not JobStatus.VALIDATING_FILES:
            self._shares.started(WaitingJob(job_id=job.id, tenant=job.project_id, gpu_seconds=_EXPECTED_SECONDS))
            self.disk.shares = self._shares.to_record()

    def _claim_more(self) -> None:
        found = self._store.claims.claim_next(self.name, seconds=LEASE_SECONDS, statuses=_VALIDATING)
        if found is not None:
            self._hold(*found)
        num_training = sum(run.job.status is not JobStatus.VALIDATING_FILES for run in self._held.values())
        if num_training >= _MOST_JOBS:
            return
        waiting = self._store.claims.waiting(statuses={JobStatus.QUEUED, *HELD})
        for entry in waiting:
            weight = self._store.tenants.project(entry.project_id).weight
            self._shares.accounts.set_weight(entry.project_id, weight)
        first = self._shares.next_job(
            [
                WaitingJob(job_id=entry.oldest_job, tenant=entry.project_id, gpu_seconds=_EXPECTED_SECONDS)
                for entry in waiting
            ]
        )
        if first is None:
            return
        found = self._store.claims.claim(first.job_id, self.name, seconds=LEASE_SECONDS)
        if found is not None:
            self._count_skipped({entry.project_id for entry in waiting}, found[1].project_id)
            self._hold(*found)

    def _count_skipped(self, waiting: set[str], chosen: str) -> None:
        """No tenant waits while others have turn after turn."""
        self.skipped = {name: self.skipped.get(name, 0) + 1 for name in waiting if name != chosen}
        # weights are 1 to 4 of 8: eight turns make a round, and refunds at ends put others ahead by what runs
        worst = max(self.skipped.values(), default=0)
        self._invariants.require(worst <= 24, f"{self.name} skipped a tenant {worst} times")

    def _write(self, run: HeldRun, **changes: Any) -> None:
        run.job = self._store.claims.update(run.claim, **changes)

    def _step(self, run: HeldRun) -> None:
        chance, job = self._world.chance, run.job
        if job.status in ENDED:
            self._lose(run)
        elif job.status is JobStatus.VALIDATING_FILES:
            is_right = sum(map(ord, job.id)) % 20 > 0
            self._write(run, status=JobStatus.QUEUED if is_right else JobStatus.FAILED)
            self._drop(run)
        elif job.status is JobStatus.QUEUED:
            self._write(run, status=JobStatus.RUNNING, events=[NewEvent(message="Fine-tuning job started")])
        elif job.status is JobStatus.PAUSING:
            self._write(run, status=JobStatus.PAUSED)
            self._drop(run)
        elif job.status is JobStatus.PAUSED:
            self._store.claims.release(run.claim)
            self._drop(run)
        elif chance.random() < 0.02 and not self._world.is_calm:
            run.steps = self._checkpoints.get(job.id, 0)
            self._world.say(f"{self.name}: the worker of {job.id[-6:]} dies at step {run.steps}")
        else:
            self._train(run)

    def _train(self, run: HeldRun) -> None:
        job_id, last = run.claim.job_id, steps_of(run.claim.job_id)
        run.steps = min(run.steps + self._world.chance.randint(1, 3), last)
        run.seconds += TURN_SECONDS
        usage = {UsageKind.TRAINED_TOKENS: float(run.steps * TOKENS_A_STEP)}
        if run.steps < last:
            new = NewCheckpoint(step_number=run.steps, model=f"{job_id}:{run.steps}", metrics={}, blob=None)
            self._write(run, checkpoint=new, usage=usage, trained_tokens=run.steps * TOKENS_A_STEP)
            self._checkpoints[job_id] = max(run.steps, self._checkpoints.get(job_id, 0))
            return
        self._write(
            run,
            status=JobStatus.SUCCEEDED,
            model=NewModel(id=f"ft:{job_id}", blob=None),
            usage=usage,
            events=[NewEvent(message=SUCCESS)],
        )
        self._drop(run)
