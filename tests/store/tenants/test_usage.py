"""Usage by day, and the quotas that it feeds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from cohort.core.clock import ManualClock
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import QuotaExceededError, UnknownIdError
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Project
from cohort.store.store import ProjectStore, Store
from cohort.store.tenants.tenants import Quotas
from cohort.store.tenants.usage import day_of, export_usage


def test_usage_is_by_day_in_utc(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    assert day_of(datetime(2026, 10, 31, 23, 59, 59, tzinfo=UTC).timestamp()) == "2026-10-31"
    own.usage.add({UsageKind.PROMPT_TOKENS: 3, UsageKind.GPU_SECONDS: 0.25})
    own.usage.add({UsageKind.PROMPT_TOKENS: 4})
    clock.advance(86400)
    own.usage.add({UsageKind.PROMPT_TOKENS: 5})
    found = [(row.day, row.kind, row.amount) for row in own.usage.by_day()]
    assert found == [
        ("2000-01-01", UsageKind.GPU_SECONDS, 0.25),
        ("2000-01-01", UsageKind.PROMPT_TOKENS, 7),
        ("2000-01-02", UsageKind.PROMPT_TOKENS, 5),
    ]
    assert [row.day for row in own.usage.by_day(first_day="2000-01-02")] == ["2000-01-02"]
    assert len(own.usage.by_day(last_day="2000-01-01")) == 2


def test_the_export_has_every_project(store: Store, own: ProjectStore, other_project: Project) -> None:
    own.usage.add({UsageKind.REQUESTS: 1})
    store.project(other_project.id).usage.add({UsageKind.REQUESTS: 2})
    assert {row.project_id: row.amount for row in export_usage(store.database)} == {
        own.project_id: 1,
        other_project.id: 2,
    }
    assert list(export_usage(store.database, first_day="2000-01-02")) == []


def test_the_days_tokens_have_a_quota_that_ends_at_midnight(
    store: Store, own: ProjectStore, clock: ManualClock
) -> None:
    store.tenants.set_quotas(own.project_id, Quotas(max_tokens_per_day=10), actor="test")
    own.usage.add({UsageKind.PROMPT_TOKENS: 6, UsageKind.GPU_SECONDS: 1e6})
    own.usage.check_tokens(4)
    with pytest.raises(QuotaExceededError, match="max_tokens_per_day of this project is 10, 6 of it are used, and 5"):
        own.usage.check_tokens(5)
    clock.advance(86400)
    own.usage.check_tokens(10)


def test_writers_at_once_lose_nothing(store: Store, own: ProjectStore) -> None:
    def add(_: int) -> None:
        own.usage.add({UsageKind.PROMPT_TOKENS: 1, UsageKind.COMPLETION_TOKENS: 1, UsageKind.REQUESTS: 1})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(40)))
    assert [row.amount for row in own.usage.by_day()] == [40, 40, 40]


def test_a_job_that_has_ended_is_brought_up_to_its_total_once(store: Store, own: ProjectStore) -> None:
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    claimed = store.claims.claim(job.id, "node", seconds=10)
    assert claimed is not None
    store.claims.update(claimed[0], usage={UsageKind.TRAINED_TOKENS: 10})
    # while it has not ended its runner tells
    own.usage.settle_job(job.id, {UsageKind.TRAINED_TOKENS: 30})
    assert [row.amount for row in own.usage.by_day()] == [10]
    own.jobs.cancel(job.id)
    for total in (30, 30, 20):
        own.usage.settle_job(job.id, {UsageKind.TRAINED_TOKENS: total})
    assert [row.amount for row in own.usage.by_day()] == [30]


def test_a_job_of_another_project_is_not_charged(store: Store, own: ProjectStore, other_project: Project) -> None:
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    own.jobs.cancel(job.id)
    with pytest.raises(UnknownIdError):
        store.project(other_project.id).usage.settle_job(job.id, {UsageKind.TRAINED_TOKENS: 30})
