"""Jobs as the clients of one project see and change them."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.store.enums import JobKind, JobStatus, UsageKind
from cohort.store.errors import IllegalTransitionError, QuotaExceededError, UnknownIdError
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.jobs.transitions import may_become
from cohort.store.pages import Order
from cohort.store.records import Job
from cohort.store.store import ProjectStore, Store
from cohort.store.tenants.audit import list_audit
from cohort.store.tenants.tenants import Quotas

NEW = NewJob(base_model="base", request={})


def in_status(store: Store, own: ProjectStore, status: JobStatus) -> Job:
    """Return a new job that came to ``status`` by legal steps."""
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    if status is JobStatus.VALIDATING_FILES:
        return own.jobs.create(NEW)
    if status is JobStatus.QUEUED:
        return job
    if status is JobStatus.PAUSED:
        return own.jobs.pause(job.id)
    found = store.claims.claim(job.id, "runner", seconds=1000)
    assert found is not None
    store.claims.update(found[0], status=JobStatus.RUNNING)
    if status is JobStatus.PAUSING:
        return own.jobs.pause(job.id)
    if status is JobStatus.CANCELLED:
        return own.jobs.cancel(job.id)
    return store.claims.update(found[0], status=status)


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_client_changes_a_job_as_the_table_says(store: Store, own: ProjectStore, status: JobStatus) -> None:
    can_pause = {
        JobStatus.QUEUED: JobStatus.PAUSED,
        JobStatus.PAUSED: JobStatus.PAUSED,
        JobStatus.RUNNING: JobStatus.PAUSING,
        JobStatus.PAUSING: JobStatus.PAUSING,
    }
    can_resume = {JobStatus.PAUSED: JobStatus.QUEUED, JobStatus.PAUSING: JobStatus.RUNNING}
    can_cancel = {each: JobStatus.CANCELLED for each in JobStatus if JobStatus.CANCELLED in may_become(each)}
    for verb, becomes in ((own.jobs.pause, can_pause), (own.jobs.resume, can_resume), (own.jobs.cancel, can_cancel)):
        job = in_status(store, own, status)
        assert job.status is status
        if status in becomes:
            assert verb(job.id).status is becomes[status]
        else:
            with pytest.raises(IllegalTransitionError, match=f"is {status} and cannot become"):
                verb(job.id)
        assert own.jobs.get(job.id).status is becomes.get(status, status)


def test_an_end_is_told_with_its_time_and_an_event(store: Store, own: ProjectStore) -> None:
    job = own.jobs.cancel(in_status(store, own, JobStatus.QUEUED).id)
    assert job.finished_at is not None
    assert own.jobs.events(job.id).items[0].message == "The job has been cancelled."


@pytest.mark.parametrize("order", list(Order))
def test_pages_give_every_job_once_in_order(own: ProjectStore, order: Order) -> None:
    made = [own.jobs.create(NEW).id for _ in range(7)]
    wanted = made if order is Order.ASC else made[::-1]
    got: list[str] = []
    has_more = True
    while has_more:
        page = own.jobs.list(after=got[-1] if got else None, limit=3, order=order)
        got += [job.id for job in page.items]
        has_more = page.has_more
    assert got == wanted
    assert own.jobs.list(after=wanted[-1], order=order).items == []


def test_pages_do_not_shift_when_jobs_come_in_between(own: ProjectStore) -> None:
    made = [own.jobs.create(NEW).id for _ in range(4)]
    first = own.jobs.list(limit=2)
    own.jobs.create(NEW)
    second = own.jobs.list(limit=2, after=first.items[-1].id)
    assert [job.id for job in (*first.items, *second.items)] == made[::-1]


def test_jobs_are_found_by_kind_and_metadata(own: ProjectStore) -> None:
    plain = own.jobs.create(NEW)
    both = own.jobs.create(NewJob(base_model="base", request={}, metadata={"team": "a", "run": "1"}))
    one = own.jobs.create(NewJob(base_model="base", request={}, metadata={"team": "a"}, kind=JobKind.TASK))

    def found(**how: object) -> list[str]:
        return [job.id for job in own.jobs.list(**how).items]  # type: ignore[arg-type]

    assert found(metadata={"team": "a"}) == [one.id, both.id]
    assert found(metadata={"team": "a", "run": "1"}) == [both.id]
    assert found(metadata={"team": "b"}) == []
    assert found(metadata={"team": "\0"}) == []
    assert found(without_metadata=True) == [plain.id]
    assert found(kind=JobKind.TASK) == [one.id]
    assert found(kind=JobKind.FINE_TUNING, metadata={"team": "a"}) == [both.id]


def test_events_are_numbered_without_gaps_newest_first(own: ProjectStore) -> None:
    job = own.jobs.create(NEW, events=[NewEvent(message=str(number)) for number in range(1, 6)])
    page = own.jobs.events(job.id, limit=2)
    assert [(event.number, event.message) for event in page.items] == [(5, "5"), (4, "4")]
    assert page.has_more
    rest = own.jobs.events(job.id, after=page.items[-1].id)
    assert [event.number for event in rest.items] == [3, 2, 1]
    assert [event.number for event in own.jobs.events_since(job.id, 3)] == [4, 5]


def test_an_event_of_another_job_is_no_place_to_begin_after(own: ProjectStore) -> None:
    first, second = (own.jobs.create(NEW, events=[NewEvent(message="Created.")]) for _ in range(2))
    event = own.jobs.events(first.id).items[0]
    with pytest.raises(UnknownIdError):
        own.jobs.events(second.id, after=event.id)


def test_the_same_idempotency_key_is_the_same_job(store: Store, own: ProjectStore, other_project: object) -> None:
    new = NewJob(base_model="base", request={}, idempotency_key="once")
    first = own.jobs.create(new, events=[NewEvent(message="Created.")])
    assert own.jobs.create(new, events=[NewEvent(message="Created.")]).id == first.id
    assert len(own.jobs.events(first.id).items) == 1
    assert store.project(other_project.id).jobs.create(new).id != first.id  # type: ignore[attr-defined]


def test_open_jobs_have_a_quota(store: Store, own: ProjectStore) -> None:
    store.tenants.set_quotas(own.project_id, Quotas(max_open_jobs=2), actor="test")
    first, _ = own.jobs.create(NEW), own.jobs.create(NEW)
    with pytest.raises(QuotaExceededError, match="max_open_jobs of this project is 2, 2 of it are used"):
        own.jobs.create(NEW)
    own.jobs.cancel(first.id)
    own.jobs.create(NEW)


def test_no_job_is_accepted_when_the_days_tokens_are_used(store: Store, own: ProjectStore) -> None:
    store.tenants.set_quotas(own.project_id, Quotas(max_tokens_per_day=100), actor="test")
    own.usage.add({UsageKind.PROMPT_TOKENS: 60, UsageKind.COMPLETION_TOKENS: 39, UsageKind.GPU_SECONDS: 1e6})
    own.jobs.create(NEW)
    own.usage.add({UsageKind.TRAINED_TOKENS: 1})
    with pytest.raises(QuotaExceededError, match="max_tokens_per_day"):
        own.jobs.create(NEW)


@pytest.mark.parametrize(
    ("new", "where"),
    [
        (NewJob(base_model="a\0", request={}), "base_model"),
        (NewJob(base_model="a", request={"x": ["\ud800"]}), r"request\.x\[0\]"),
        (NewJob(base_model="a", request={"x": float("nan")}), r"request\.x"),
        (NewJob(base_model="a", request={}, seed=2**63), "seed"),
        (NewJob(base_model="a", request={}, metadata={"k\0": "v"}), "metadata"),
    ],
)
def test_what_no_database_can_hold_is_the_clients_mistake(own: ProjectStore, new: NewJob, where: str) -> None:
    with pytest.raises(InputError, match=where):
        own.jobs.create(new)


@pytest.mark.parametrize("strange", ["", "\0", "\ud800", "' OR 1=1 --", "ftjob-" + "9" * 5000, "jöb"])
def test_strange_ids_are_unknown(own: ProjectStore, strange: str) -> None:
    for ask in (own.jobs.get, own.files.get, own.models.get, own.jobs.events):
        with pytest.raises(UnknownIdError):
            ask(strange)
    assert own.models.checkpoint(strange) is None


def test_what_a_client_asks_for_is_in_the_audit_log_once_it_is_done(store: Store, own: ProjectStore) -> None:
    job = in_status(store, own, JobStatus.RUNNING)
    for action in ("pause", "resume", "cancel"):
        getattr(own.jobs, action)(job.id, actor="key key_1")
        newest = list_audit(store.database, project_id=own.project_id).items[0]
        assert (newest.actor, newest.action, newest.target) == ("key key_1", f"job.{action}", job.id)
    with pytest.raises(IllegalTransitionError):
        own.jobs.pause(job.id, actor="key key_1")
    assert list_audit(store.database, project_id=own.project_id).items[0] == newest
