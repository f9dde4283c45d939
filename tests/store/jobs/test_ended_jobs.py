"""Which jobs are over: their own end, or their project's."""

from __future__ import annotations

import math

from cohort.core.clock import ManualClock
from cohort.store.jobs.ended_jobs import ended_jobs, jobs_of_removed_projects
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import ProjectStore, Store


def test_jobs_that_ended_and_those_that_are_known(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    ended, is_open = (own.jobs.create(NewJob(base_model="b", request={})).id for _ in range(2))
    asked = [ended, is_open, "ftjob-unknown"]
    own.jobs.cancel(ended)
    assert ended_jobs(store.database, asked, seconds_ago=60) == (set(), {ended, is_open})
    clock.advance(60)
    assert ended_jobs(store.database, asked, seconds_ago=60) == ({ended}, {ended, is_open})
    assert ended_jobs(store.database, asked, seconds_ago=math.inf) == (set(), {ended, is_open})
    assert ended_jobs(store.database, [], seconds_ago=0) == (set(), set())


def test_jobs_of_removed_projects(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    job = own.jobs.create(NewJob(base_model="b", request={})).id
    assert jobs_of_removed_projects(store.database, [job], seconds_ago=0) == set()
    store.tenants.remove_project(own.project_id, actor="test")
    assert jobs_of_removed_projects(store.database, [job], seconds_ago=60) == set()
    clock.advance(60)
    assert jobs_of_removed_projects(store.database, [job, "ftjob-unknown"], seconds_ago=60) == {job}
