"""Runs the jobs of all tenants on this node: claims them in turn by share, moves each on, and gives them back.

One process of a node does this at a time; others take over when it is gone. All that a runner needs to go on is in the
database, the queue and the run directories.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError, InUseError, StorageFullError
from cohort.engine.resident.resident_base import ResidentBase
from cohort.runs.lock import RunLock
from cohort.scheduling.shares.jobs import WaitingJob
from cohort.service.jobs.base_dispatcher import BaseDispatcher
from cohort.service.jobs.dispatcher import DispatcherProcess
from cohort.service.jobs.held_job import HeldJob
from cohort.service.jobs.housekeeping.housekeeper import Housekeeper
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_parts import JobParts
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.local_queue import LocalQueue
from cohort.service.jobs.node_shares import EXPECTED_SECONDS, NodeShares
from cohort.service.jobs.room import Room
from cohort.service.jobs.room_pauses import keep_room
from cohort.service.jobs.runner_settings import RunnerSettings
from cohort.store.enums import JobStatus
from cohort.store.errors import IllegalTransitionError, LeaseLostError, StorageFull, StoreUnavailable
from cohort.store.jobs.claims import Claim
from cohort.store.jobs.transitions import HELD
from cohort.store.records import Job
from cohort.store.store import Store
from cohort.task_queue.workers.pool import PoolRequest

__all__ = ["JobRunner"]

_log = logging.getLogger(__name__)
_LOCK_NAME = ".runner.lock"
_SHARES_NAME = "shares.json"
_THREADS = 2
_PARK_SECONDS = 60.0
_WARNING_SECONDS = 30.0
_RECLAIM_SECONDS = 60.0
_VALIDATING = (JobStatus.VALIDATING_FILES,)


class Dispatching(Protocol):
    """What works the queue off."""

    @property
    def is_alive(self) -> bool: ...

    def keep_alive(self) -> None:
        """Start it if it is not there."""

    def stop(self, *, wait_seconds: float) -> bool:
        """Let every task save its state; return whether that was done in time."""
        ...


class JobRunner:
    """A thread that runs jobs.

    Attributes:
        is_leading: Whether this process runs the node's jobs.
    """

    def __init__(
        self,
        store: Store,
        *,
        folder: Path,
        name: str,
        bases: Mapping[str, BaseForJobs],
        places: PoolRequest,
        settings: RunnerSettings,
        base: ResidentBase | None = None,
        scratch: Sequence[Path] = (),
        clock: Clock | None = None,
    ) -> None:
        """Make a runner that does nothing yet.

        Args:
            folder: The node's; its queue, its jobs' rows and their runs are in it.
            name: The node's, which no other has.
            bases: By the names that jobs use.
            places: Where workers run.
            base: The base model in this process that jobs train on instead.
            scratch: Where requests have files as long as they last.
            clock: For simulations.
        """
        self._clock = clock or SystemClock()
        self._base = base
        self._store, self._folder, self._name, self._settings = store, folder, name, settings
        self._bases, self._places = dict(bases), places
        self._lock = RunLock(folder / _LOCK_NAME)
        self._room = Room(folder, least_bytes=settings.min_free_bytes)
        self._shares = NodeShares(folder / _SHARES_NAME)
        self._housekeeper = Housekeeper(store, owner=name, folder=folder, retention=settings.retention, scratch=scratch)
        self._weights: dict[str, float] = {}
        self._organisations: dict[str, str] = {}
        self._held: dict[str, HeldJob] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cohort-jobs", daemon=True)
        self._renewed_at, self._reached_at = float("-inf"), self._clock.monotonic()
        self._warned_at = self._reclaimed_at = float("-inf")
        self.is_leading = False

    def start(self) -> None:
        self._thread.start()

    def close(self, *, wait_seconds: float = 120.0) -> bool:
        """Let running jobs save their state, give all jobs back, and stop; return whether that was done in time."""
        self._stop.set()
        self._thread.join(wait_seconds)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_held(self) -> int:
        """How many jobs this node has."""
        return len(self._held)

    def _run(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        while not self._stop.is_set():
            try:
                with self._lock:
                    self.is_leading = True
                    self._lead()
            except InUseError:
                # another process of this node runs its jobs
                self._stop.wait(self._settings.turn_seconds)
            except Exception:
                _log.exception("the runner failed and begins again")
                self._stop.wait(self._settings.turn_seconds)
            finally:
                self.is_leading = False

    def _lead(self) -> None:
        queue = LocalQueue(self._folder / "queue", runs=self._folder / "runs")
        dispatcher: DispatcherProcess | BaseDispatcher
        if self._base is None:
            # the kernel ends it with this thread
            dispatcher = DispatcherProcess(queue.directory, self._places)
        else:
            dispatcher = BaseDispatcher(queue.directory, self._base)
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cohort-job-files")
        parts = self.parts(queue, threads)
        try:
            self._held = {}
            # until now another process of this node may have written them
            self._shares = NodeShares(self._folder / _SHARES_NAME)
            self._reached_at = self._clock.monotonic()
            while not self._stop.is_set():
                self.turn(parts, dispatcher)
                self._housekeeper.turn(threads)
                self._stop.wait(self._settings.turn_seconds)
        finally:
            dispatcher.stop(wait_seconds=_PARK_SECONDS)
            threads.shutdown(wait=True, cancel_futures=True)
            self._park_all()
            queue.close()

    def parts(self, queue: LocalQueue, threads: Executor) -> JobParts:
        """Return what this node's jobs share."""
        return JobParts(
            store=self._store,
            queue=queue,
            folders=self._folder / "jobs",
            base_of=self._base_of,
            organisation_of=self._organisation_of,
            weight_of=self._weight_of,
            threads=threads,
            settings=self._settings,
        )

    def turn(self, parts: JobParts, dispatcher: Dispatching) -> None:
        """Look at all jobs once, and move each on by a step; called again and again by the runner's thread."""
        try:
            # a pass that the store or the disk broke off left claims, and a client's rows with them
            now = self._clock.monotonic()
            if not self._held or now - self._reclaimed_at > _RECLAIM_SECONDS:
                self._reclaimed_at = now
                self._reclaim(parts)
            self._renew()
            keep_room(self._room, parts, self._held)
            self._step_all(parts)
            self._claim_more(parts)
            self._shares.keep()
        except StoreUnavailable as error:
            away = self._clock.monotonic() - self._reached_at
            if away > self._settings.grace_seconds and dispatcher.is_alive:
                _log.warning("the store has been away for %.0f s, so all jobs save their state: %s", away, error)
                dispatcher.stop(wait_seconds=_PARK_SECONDS)
            if away > self._settings.grace_seconds:
                return
        except (StorageFull, StorageFullError) as error:
            if self._clock.monotonic() - self._warned_at > _WARNING_SECONDS:
                self._warned_at = self._clock.monotonic()
                _log.warning("the store has no room, so what jobs have to say waits: %s", error)
        else:
            self._reached_at = self._clock.monotonic()
        dispatcher.keep_alive()

    def _reclaim(self, parts: JobParts) -> None:
        """Go on with the jobs that this node had when it was killed."""
        for folder in JobFolder.all_in(parts.folders):
            claim = folder.claim
            if claim is None or claim.job_id in self._held:
                continue
            try:
                job = self._store.claims.renew(claim, seconds=self._settings.lease_seconds)
            except LeaseLostError:
                self._let_go(parts, folder, claim)
                continue
            self._hold(parts, claim, job)
        self._shares.settle(self._held)

    def _let_go(self, parts: JobParts, folder: JobFolder, claim: Claim) -> None:
        """Take in that a job which this node had was cancelled, has ended, or went to another node."""
        try:
            job = self._store.project(claim.project_id).jobs.get(claim.job_id)
            # its worker saves its state first, and the disk may be full: it is let go of with the others
            self._held[job.id] = HeldJob(parts, claim, job)
        except (StoreUnavailable, StorageFull, StorageFullError):
            raise
        except CohortError:
            # it was forgotten, or its base model is not served here any more
            if parts.queue.take_out(claim.job_id):
                folder.drop_claim()

    def _hold(self, parts: JobParts, claim: Claim, job: Job) -> None:
        try:
            self._held[job.id] = HeldJob(parts, claim, job)
        except StorageFullError:
            # another node may have room
            self._store.claims.release(claim)
            raise
        except CohortError as error:
            # its base model is not served here any more
            _log.warning("job %s cannot run on this node: %s", job.id, error)
            self._store.claims.release(claim)
            return
        if job.status is not JobStatus.VALIDATING_FILES:
            self._shares.weigh(job.project_id, self._weight_of(job.project_id))
            self._shares.started(job.id, tenant=job.project_id, run_seconds=self._held[job.id].run_seconds)

    def _renew(self) -> None:
        now = self._clock.monotonic()
        # clients cancel and pause in the database: that is seen here
        is_due = now - self._renewed_at >= self._settings.lease_seconds / 3
        if is_due:
            self._renewed_at = now
        full: StorageFullError | None = None
        for held in list(self._held.values()):
            try:
                if is_due:
                    held.renewed(self._store.claims.renew(held.claim, seconds=self._settings.lease_seconds))
                    held.tell_usage()
                else:
                    held.look()
            except LeaseLostError:
                try:
                    held.lost()
                except StorageFullError as error:
                    # the claims of the others must not run out meanwhile
                    full = error
            if is_due:
                self._shares.corrected(held.job.id, run_seconds=held.run_seconds)
        if full is not None:
            raise full

    def _step_all(self, parts: JobParts) -> None:
        tasks = parts.queue.tasks()
        for held in list(self._held.values()):
            if not held.is_over:
                try:
                    held.step(tasks.get(held.job.id))
                except LeaseLostError:
                    held.lost()
                except IllegalTransitionError as error:
                    # its client paused or resumed it after this turn's look; the next turn sees that
                    _log.info("%s", error)
            if held.is_over:
                del self._held[held.job.id]
                self._shares.ended(held.job.id, run_seconds=held.run_seconds)

    def _claim_more(self, parts: JobParts) -> None:
        seconds = self._settings.lease_seconds
        # files first: they cost no GPU, and a client waits to hear what is wrong with them
        if sum(held.job.status is JobStatus.VALIDATING_FILES for held in self._held.values()) < _THREADS:
            # in the order in which they came
            waiting = self._store.claims.waiting(statuses=_VALIDATING)
            if (first := next((each for each in waiting if each.base_model in self._bases), None)) is not None:
                found = self._store.claims.claim(first.oldest_job, self._name, seconds=seconds)
                if found is not None:
                    self._hold(parts, *found)
        num_training = sum(held.job.status is not JobStatus.VALIDATING_FILES for held in self._held.values())
        if num_training >= self._settings.most_jobs or not self._room.is_there:
            return
        statuses = {JobStatus.QUEUED, *HELD}
        waiting = self._store.claims.waiting(statuses=statuses)
        known = [entry for entry in waiting if entry.base_model in self._bases]
        for entry in known:
            self._shares.weigh(entry.project_id, self._weight_of(entry.project_id))
        jobs = [
            WaitingJob(job_id=entry.oldest_job, tenant=entry.project_id, gpu_seconds=EXPECTED_SECONDS)
            for entry in known
        ]
        for job in self._shares.order(jobs)[: self._settings.most_jobs - num_training]:
            found = self._store.claims.claim(job.job_id, self._name, seconds=seconds)
            if found is not None:
                self._hold(parts, *found)

    def _park_all(self) -> None:
        for held in self._held.values():
            try:
                held.park()
            except CohortError as error:
                # its claim runs out by itself, and the folder still has it
                _log.warning("job %s could not be given back: %s", held.job.id, error)
        self._held = {}

    def _base_of(self, name: str) -> BaseForJobs:
        if name not in self._bases:
            raise CohortError(f"no base model is named {name!r} here")
        return self._bases[name]

    def _organisation_of(self, project_id: str) -> str:
        if project_id not in self._organisations:
            project = self._store.tenants.project(project_id)
            self._organisations[project_id] = self._store.tenants.organisation(project.organisation_id).name
        return self._organisations[project_id]

    def _weight_of(self, project_id: str) -> float:
        return self._store.tenants.project(project_id).weight
