"""One runner has a job, and only that one writes."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from cohort.core.clock import ManualClock
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import IllegalTransitionError, LeaseLostError
from cohort.store.jobs.claims import Claim, NewCheckpoint, NewModel
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.pages import Order
from cohort.store.records import Job, Project
from cohort.store.store import ProjectStore, Store, open_store

QUEUED = NewJob(base_model="base", request={}, status=JobStatus.QUEUED)


def _claimed(store: Store, owner: str = "first") -> tuple[Claim, Job]:
    found = store.claims.claim_next(owner, seconds=10)
    assert found is not None
    return found


def test_jobs_are_claimed_in_their_order_each_once(store: Store, own: ProjectStore) -> None:
    made = [own.jobs.create(QUEUED).id for _ in range(3)]
    assert [_claimed(store)[1].id for _ in made] == made
    assert store.claims.claim_next("other", seconds=10) is None
    assert store.claims.claim(made[0], "other", seconds=10) is None


def test_a_claim_that_expires_goes_to_another_runner_and_fences_the_first(
    store: Store, own: ProjectStore, clock: ManualClock
) -> None:
    job = own.jobs.create(QUEUED)
    first, _ = _claimed(store)
    store.claims.update(first, status=JobStatus.RUNNING)
    clock.advance(9)
    store.claims.renew(first, seconds=10)
    clock.advance(9)
    assert store.claims.claim_next("second", seconds=10) is None
    clock.advance(2)
    second, again = _claimed(store, "second")
    assert (again.id, again.status) == (job.id, JobStatus.RUNNING)
    assert second.token > first.token
    for write in (
        lambda: store.claims.renew(first, seconds=10),
        lambda: store.claims.update(first, status=JobStatus.SUCCEEDED),
        lambda: store.claims.update(first, events=[NewEvent(message="late")]),
        lambda: store.claims.update(first, usage={UsageKind.TRAINED_TOKENS: 5}),
        lambda: store.claims.update(first, model=NewModel(id="ft:x", blob=None)),
        lambda: store.claims.update(
            first, checkpoint=NewCheckpoint(step_number=1, model="ft:x:ckpt-step-1", metrics={}, blob=None)
        ),
    ):
        with pytest.raises(LeaseLostError, match="stop working on it"):
            write()
    assert [event.message for event in own.jobs.events(job.id).items] == []
    assert own.models.list().items == []
    assert own.jobs.checkpoints(job.id).items == []
    assert own.usage.by_day() == []
    assert store.claims.update(second, status=JobStatus.SUCCEEDED).status is JobStatus.SUCCEEDED


def test_an_expired_claim_that_nobody_took_is_still_good(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    clock.advance(1000)
    store.claims.update(claim, status=JobStatus.RUNNING)
    store.claims.renew(claim, seconds=10)
    assert store.claims.claim_next("second", seconds=10) is None


def test_a_released_job_is_free_at_once_and_its_claim_void(store: Store, own: ProjectStore) -> None:
    own.jobs.create(QUEUED)
    first, _ = _claimed(store)
    store.claims.release(first)
    with pytest.raises(LeaseLostError):
        store.claims.update(first, status=JobStatus.RUNNING)
    second, _ = _claimed(store, "second")
    # once more does not take it from the second
    store.claims.release(first)
    store.claims.update(second, status=JobStatus.RUNNING)


def test_a_cancelled_job_is_lost_to_its_runner(store: Store, own: ProjectStore) -> None:
    job = own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    store.claims.update(claim, status=JobStatus.RUNNING)
    own.jobs.cancel(job.id)
    with pytest.raises(LeaseLostError, match="has ended"):
        store.claims.renew(claim, seconds=10)
    assert own.jobs.get(job.id).status is JobStatus.CANCELLED


def test_a_paused_job_waits_for_its_client(store: Store, own: ProjectStore) -> None:
    job = own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    store.claims.update(claim, status=JobStatus.RUNNING)
    own.jobs.pause(job.id)
    assert store.claims.renew(claim, seconds=10).status is JobStatus.PAUSING
    store.claims.update(claim, status=JobStatus.PAUSED)
    assert store.claims.claim_next("second", seconds=10) is None
    assert own.jobs.resume(job.id).status is JobStatus.QUEUED
    again, _ = _claimed(store, "second")
    assert again.token > claim.token


def test_a_status_that_may_not_follow_is_refused_and_nothing_is_written(store: Store, own: ProjectStore) -> None:
    job = own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    with pytest.raises(IllegalTransitionError, match="queued and cannot become succeeded; from queued it can become"):
        store.claims.update(claim, status=JobStatus.SUCCEEDED, events=[NewEvent(message="Done.")], trained_tokens=3)
    assert own.jobs.events(job.id).items == []
    assert own.jobs.get(job.id).trained_tokens is None


def test_a_runner_cannot_write_every_column(store: Store, own: ProjectStore) -> None:
    own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    with pytest.raises(TypeError, match="does not write project_id"):
        store.claims.update(claim, project_id="proj_other")


def test_usage_is_told_in_totals_and_counts_once(store: Store, own: ProjectStore) -> None:
    own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    for total in (10, 10, 25, 20):
        store.claims.update(claim, usage={UsageKind.TRAINED_TOKENS: total, UsageKind.GPU_SECONDS: 0.5})
    assert {row.kind: row.amount for row in own.usage.by_day()} == {
        UsageKind.TRAINED_TOKENS: 25,
        UsageKind.GPU_SECONDS: 0.5,
    }


def test_what_a_killed_runner_repeats_is_there_once(store: Store, own: ProjectStore) -> None:
    job = own.jobs.create(QUEUED)
    claim, _ = _claimed(store)
    checkpoint = NewCheckpoint(step_number=1, model="ft:x:ckpt-step-1", metrics={"train_loss": math.nan}, blob=None)
    model = NewModel(id="ft:x", blob=None)
    for _ in range(2):
        store.claims.update(claim, checkpoint=checkpoint, model=model)
    (only,) = own.jobs.checkpoints(job.id).items
    # a loss that is none is told as none
    assert only.metrics == {"train_loss": None}
    assert [each.id for each in own.models.list().items] == ["ft:x"]


def test_waiting_jobs_are_counted_by_project_and_base(
    store: Store, own: ProjectStore, other_project: Project, clock: ManualClock
) -> None:
    first = own.jobs.create(QUEUED)
    clock.advance(5)
    own.jobs.create(QUEUED)
    other = store.project(other_project.id).jobs.create(NewJob(base_model="large", request={}))
    paused = own.jobs.create(QUEUED)
    own.jobs.pause(paused.id)
    found = store.claims.waiting()
    assert [(each.project_id, each.base_model, each.num_jobs, each.oldest_job) for each in found] == [
        (own.project_id, "base", 2, first.id),
        (other_project.id, "large", 1, other.id),
    ]
    assert found[0].waiting_since == first.created_at
    assert [each.num_jobs for each in store.claims.waiting(statuses=[JobStatus.QUEUED])] == [2]
    claimed = store.claims.claim_next("runner", seconds=5, project_id=other_project.id)
    assert claimed is not None
    assert claimed[1].id == other.id
    assert store.claims.claim_next("runner", seconds=5, base_model="large") is None


def test_runners_that_ask_at_once_get_different_jobs(store: Store, own: ProjectStore) -> None:
    made = {own.jobs.create(QUEUED).id for _ in range(12)}

    def claim_all(name: str) -> list[str]:
        got = []
        while (found := store.claims.claim_next(name, seconds=60)) is not None:
            got.append(found[1].id)
        return got

    with ThreadPoolExecutor(4) as threads:
        got = [job for own_jobs in threads.map(claim_all, "abcd") for job in own_jobs]
    assert sorted(got) == sorted(made)


def test_claims_are_looked_for_among_open_jobs_only(tmp_path: Path) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    with closing(open_store(tmp_path / "service")) as store:
        event.listen(store.database.engine, "before_cursor_execute", note)
        store.claims.claim_next("runner", seconds=1)
        store.claims.waiting()
        looks = [(statement, parameters) for statement, parameters in asked if "lease_expires_at <= " in statement]
        assert len(looks) == 2
        with store.database.read() as connection:
            for statement, parameters in looks:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                # the planner of SQLite: not the whole table, in which most jobs have ended
                assert any("USING INDEX ix_jobs_open" in str(row) for row in plan), plan


def test_an_event_that_is_told_again_is_recognised(store: Store, own: ProjectStore) -> None:
    job, other = own.jobs.create(QUEUED), own.jobs.create(QUEUED)
    (claim, _), (theirs, _) = _claimed(store), _claimed(store)
    told = [NewEvent(message=f"step {number}", key=f"step {number}") for number in (1, 1, 2)]
    store.claims.update(claim, events=told)
    # killed before it noted how far it had told: the same and what came since, and what has no key
    plain = NewEvent(message="again", data={"x": 1})
    store.claims.update(claim, events=[*told, NewEvent(message="step 3", key="step 3"), plain, plain])
    found = own.jobs.events(job.id, order=Order.ASC).items
    assert [event.message for event in found] == ["step 1", "step 2", "step 3", "again", "again"]
    assert [event.number for event in found] == [1, 2, 3, 4, 5]
    store.claims.update(theirs, events=told)
    assert len({event.id for each in (job, other) for event in own.jobs.events(each.id).items}) == 7
