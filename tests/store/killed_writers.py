"""Processes that write to a store as fast as they can, to be killed; they tell the test what was acknowledged."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import TypeVar

from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import StoreUnavailable
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Job
from cohort.store.store import ProjectStore, Store, open_store

__all__ = ["Acknowledged", "Writers"]

# longer than a test: a job that a killed process has is not claimed again
_LEASE_SECONDS = 3600.0
# a writer is killed long before, but must not fill the database while the test is busy
_MOST_ROUNDS = 40
_T = TypeVar("_T")


def _write_until_killed(place: str, blobs: str, project_id: str, name: str, told: Connection) -> None:
    store = _opened(place, blobs)
    own = store.project(project_id)
    number = 0
    while number < _MOST_ROUNDS:
        try:
            _round(store, own, f"{name}-{number}", told)
        except StoreUnavailable:
            # the database is killed, too: the same once more
            time.sleep(0.02)
        else:
            number += 1
    signal.pause()


def _opened(place: str, blobs: str) -> Store:
    while True:
        try:
            return open_store(place, blobs=blobs)
        except StoreUnavailable:
            # killed while this process began
            time.sleep(0.02)


def _round(store: Store, own: ProjectStore, name: str, told: Connection) -> None:
    new = NewJob(base_model="base", request={}, status=JobStatus.QUEUED, idempotency_key=name)
    told.send(("job", own.jobs.create(new).id))
    file = own.files.add([name.encode()], filename=name, purpose="fine-tune", max_bytes=100)
    told.send(("file", file.id))
    claimed = store.claims.claim_next(name, seconds=_LEASE_SECONDS)
    if claimed is None:
        return
    claim, job = claimed
    told.send(("claim", job.id))
    store.claims.update(claim, status=JobStatus.RUNNING, usage={UsageKind.TRAINED_TOKENS: 1})
    done = NewEvent(message="Done.")
    store.claims.update(claim, status=JobStatus.SUCCEEDED, events=[done], usage={UsageKind.TRAINED_TOKENS: 2})
    told.send(("done", job.id))


@dataclass
class Acknowledged:
    """Ids of what the writers were told is written."""

    job: list[str] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    claim: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def check(self, store: Store, project_id: str) -> None:
        """Assert that nothing of it is lost, and that nothing was done twice."""
        own = store.project(project_id)
        jobs: dict[str, Job] = {job.id: job for job in own.jobs.list(limit=100_000).items}
        assert set(self.job) <= set(jobs)
        assert len(set(self.claim)) == len(self.claim)
        # no job has a second claim: each runner's number is the first
        assert {jobs[job].lease_token for job in self.claim} <= {1}
        assert all(jobs[job].status is JobStatus.SUCCEEDED for job in self.done)
        for job in jobs.values():
            messages = [event.message for event in own.jobs.events(job.id).items]
            assert messages == (["Done."] if job.status is JobStatus.SUCCEEDED else [])
        tokens = {JobStatus.SUCCEEDED: 2, JobStatus.RUNNING: 1}
        used = sum(row.amount for row in own.usage.by_day() if row.kind is UsageKind.TRAINED_TOKENS)
        assert used == sum(tokens.get(job.status, 0) for job in jobs.values())
        files = {file.id: file for file in own.files.list(limit=100_000).items}
        assert set(self.file) <= set(files)
        for file in files.values():
            assert len(b"".join(own.files.content(file.id))) == file.bytes


class Writers:
    """Two writers at a time; one that is killed is replaced."""

    def __init__(self, place: str, blobs: str, project_id: str) -> None:
        self._where = (place, blobs, project_id)
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._running: list[tuple[BaseProcess, Connection]] = []
        self._num_started = 0
        self.acknowledged = Acknowledged()

    def start(self) -> None:
        self._num_started += 1
        mine, theirs = self._context.Pipe(duplex=False)
        name = f"writer-{self._num_started}"
        process = self._context.Process(target=_write_until_killed, args=(*self._where, name, theirs), daemon=True)
        process.start()
        theirs.close()
        self._running.append((process, mine))

    def read(self, count: int) -> None:
        """Read until the writers have told ``count`` more things."""
        for _ in range(count):
            ready = wait([told for _, told in self._running], timeout=60)
            assert ready, "the writers are stuck"
            told = ready[0]
            assert isinstance(told, Connection)
            self._take(told)

    def _take(self, told: Connection) -> None:
        kind, what = told.recv()
        getattr(self.acknowledged, kind).append(what)

    def kill(self) -> None:
        """Kill the oldest writer, in the middle of whatever it does, and read what it had said."""
        process, told = self._running.pop(0)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with suppress(EOFError, OSError):
            while told.poll():
                self._take(told)
        told.close()

    @contextmanager
    def running(self) -> Iterator[Writers]:
        for _ in range(2):
            self.start()
        try:
            yield self
        finally:
            while self._running:
                self.kill()
