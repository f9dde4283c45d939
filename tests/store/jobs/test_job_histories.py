"""Random histories of jobs: a client, two runners whose claims expire, a database that fails and forgets to answer.

A model next to the store says who has which job. Drawn by Hypothesis; the database is SQLite in memory, so that an
example takes milliseconds.
"""

from __future__ import annotations

import functools
import sqlite3
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cohort.core.clock import ManualClock
from cohort.store.blobs.blob_folder import open_blobs
from cohort.store.database import Database, Moment, open_database
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import IllegalTransitionError, LeaseLostError, StoreUnavailable
from cohort.store.jobs.claims import Claim
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.jobs.transitions import ENDED, HELD, OPEN, WAITING, may_become
from cohort.store.migrating import migrate
from cohort.store.random_names import SeededSource
from cohort.store.store import Store
from tests.conftest import examples

LEASE_SECONDS = 10.0
# few, so that what runners do is often about the same job
MOST_JOBS = 3
RUNNERS = st.sampled_from(["first", "second"])
# 0 is the newest claim
WHICH = st.sampled_from([0, 0, 0, 1, 1, 2, 3])


@functools.cache
def _migrated() -> bytes:
    database = open_database("sqlite://")
    migrate(database)
    connection = database.engine.raw_connection().driver_connection
    assert isinstance(connection, sqlite3.Connection)
    content = connection.serialize()
    database.close()
    return content


def _fill(database: Database) -> None:
    """Give a database in memory its tables in less than a millisecond."""
    connection = database.engine.raw_connection().driver_connection
    assert isinstance(connection, sqlite3.Connection)
    connection.deserialize(_migrated())


class JobHistories(RuleBasedStateMachine):
    """What one client and two runners do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.fails_at: Moment | None = None
        plain = open_database("sqlite://", clock=self.clock)
        _fill(plain)
        self.database = Database(plain.engine, clock=self.clock, faults=self._fault)
        self.store = Store(self.database, open_blobs("memory://histories"), source=SeededSource(1))
        organisation = self.store.tenants.add_organisation("acme", actor="test")
        project = self.store.tenants.add_project(organisation.id, "default", actor="test")
        self.own = self.store.project(project.id)
        # what must be: the last status that was acknowledged, who has it until when, and what was used
        self.status: dict[str, JobStatus] = {}
        self.held: dict[str, tuple[int, float]] = {}
        self.used: dict[str, float] = {}
        self.claims: list[Claim] = []
        self.accepted = 0
        self.numbers = count()

    def _fault(self, moment: Moment) -> None:
        if moment is self.fails_at:
            self.fails_at = None
            raise StoreUnavailable("simulated", may_be_done=moment is Moment.COMMITTED)

    def _seen(self, job: str) -> JobStatus:
        return self.own.jobs.get(job).status

    @initialize()
    def begin(self) -> None:
        self.create(JobStatus.QUEUED)

    @precondition(lambda self: self.accepted < MOST_JOBS)
    @rule(status=st.sampled_from(sorted(WAITING)))
    def create(self, status: JobStatus) -> None:
        job = self.own.jobs.create(NewJob(base_model="base", request={}, status=status))
        self.status[job.id] = status
        self.accepted += 1

    @precondition(lambda self: self.accepted < MOST_JOBS)
    @rule(moment=st.sampled_from(list(Moment)))
    def create_while_the_database_fails(self, moment: Moment) -> None:
        new = NewJob(base_model="base", request={}, idempotency_key=str(next(self.numbers)))
        self.fails_at = moment
        try:
            job = self.own.jobs.create(new)
        except StoreUnavailable:
            # the client tries again, and there is one job
            job = self.own.jobs.create(new)
        self.status[job.id] = JobStatus.VALIDATING_FILES
        self.accepted += 1

    @rule(which=st.integers(0, MOST_JOBS - 1), verb=st.sampled_from(["pause", "pause", "resume", "resume", "cancel"]))
    def ask(self, which: int, verb: str) -> None:
        job = list(self.status)[which % len(self.status)]
        before = self.status[job]
        wanted = {
            "pause": {
                JobStatus.QUEUED: JobStatus.PAUSED,
                JobStatus.RUNNING: JobStatus.PAUSING,
                JobStatus.PAUSED: JobStatus.PAUSED,
                JobStatus.PAUSING: JobStatus.PAUSING,
            },
            "resume": {JobStatus.PAUSED: JobStatus.QUEUED, JobStatus.PAUSING: JobStatus.RUNNING},
            "cancel": dict.fromkeys(OPEN, JobStatus.CANCELLED),
        }[verb].get(before)
        try:
            after = getattr(self.own.jobs, verb)(job).status
        except IllegalTransitionError:
            assert wanted is None, (before, verb)
            return
        assert after is wanted
        assert after is not None
        self.status[job] = after
        if after in ENDED:
            self.held.pop(job, None)

    @rule(runner=RUNNERS)
    def claim(self, runner: str) -> None:
        now = self.clock.monotonic()
        free = [
            job
            for job, status in self.status.items()
            if status in WAITING | HELD and self.held.get(job, (0, 0.0))[1] <= now
        ]
        found = self.store.claims.claim_next(runner, seconds=LEASE_SECONDS)
        if found is None:
            assert not free
            return
        claim, job = found
        # the oldest of those that nobody has
        assert job.id == free[0]
        assert job.status is self.status[job.id]
        self.held[job.id] = (claim.token, now + LEASE_SECONDS)
        self.claims.append(claim)

    def _has(self, claim: Claim) -> bool:
        return self.held.get(claim.job_id, (-1, 0.0))[0] == claim.token

    def _past(self, which: int) -> Claim:
        """One of the last claims, the newest most often."""
        return self.claims[max(0, len(self.claims) - 1 - which)]

    @precondition(lambda self: self.claims)
    @rule(which=WHICH)
    def renew(self, which: int) -> None:
        claim = self._past(which)
        try:
            job = self.store.claims.renew(claim, seconds=LEASE_SECONDS)
        except LeaseLostError:
            assert not self._has(claim)
            return
        assert self._has(claim)
        assert job.status is self.status[claim.job_id]
        self.held[claim.job_id] = (claim.token, self.clock.monotonic() + LEASE_SECONDS)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        claim = self._past(which)
        self.store.claims.release(claim)
        if self._has(claim):
            del self.held[claim.job_id]

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, status=st.sampled_from(list(JobStatus)), total=st.integers(0, 20))
    def write(self, which: int, status: JobStatus, total: int) -> None:
        self._write(self._past(which), status, total)

    @precondition(lambda self: self.claims)
    @rule(which=WHICH, choice=st.integers(0, 4), total=st.integers(0, 20))
    def write_what_may_follow(self, which: int, choice: int, total: int) -> None:
        claim = self._past(which)
        before = self.status[claim.job_id]
        # running first: most of what can happen to a job happens then
        following = [JobStatus.RUNNING, *sorted(may_become(before) - {JobStatus.RUNNING})]
        self._write(claim, following[choice % len(following)], total)

    def _write(self, claim: Claim, status: JobStatus, total: int) -> None:
        before = self.status.get(claim.job_id)
        try:
            self.store.claims.update(
                claim, status=status, events=[NewEvent(message=status)], usage={UsageKind.TRAINED_TOKENS: total}
            )
        except LeaseLostError:
            assert not self._has(claim)
            return
        except IllegalTransitionError:
            assert before is not None
            assert status not in may_become(before) | {before}
            return
        assert before is not None
        assert self._has(claim)
        assert status in may_become(before) | {before}
        self.status[claim.job_id] = status
        self.used[claim.job_id] = max(total, self.used.get(claim.job_id, 0.0))
        # a write of the status that the job has already changes nothing of the claim
        if status not in HELD and status is not before:
            del self.held[claim.job_id]

    @rule(seconds=st.sampled_from([1.0, 5.0, LEASE_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def nothing_accepted_is_lost_or_other_than_told(self) -> None:
        listed = {job.id: job.status for job in self.own.jobs.list(limit=1000).items}
        assert listed == self.status
        assert len(listed) == self.accepted

    def events_have_no_gaps(self) -> None:
        for job in self.status:
            numbers = [event.number for event in self.own.jobs.events_since(job, 0)]
            assert numbers == list(range(1, len(numbers) + 1))

    @invariant()
    def usage_is_what_was_told(self) -> None:
        assert sum(row.amount for row in self.own.usage.by_day()) == sum(self.used.values())

    def teardown(self) -> None:
        self.events_have_no_gaps()
        self.store.close()


TestJobHistories = JobHistories.TestCase
TestJobHistories.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
