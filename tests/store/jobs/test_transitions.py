"""The status machine of jobs as a table."""

from __future__ import annotations

import re

from cohort.store.enums import JobStatus
from cohort.store.jobs.transitions import ENDED, HELD, OPEN, WAITING, may_become, sources_of
from cohort.store.tables import IS_OPEN


def test_every_status_is_open_or_ended() -> None:
    assert set(JobStatus) == OPEN | ENDED
    assert not OPEN & ENDED
    assert {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED} == ENDED


def test_every_open_job_can_be_cancelled_or_fail_and_reached_from_the_beginning() -> None:
    assert all({JobStatus.CANCELLED, JobStatus.FAILED} <= may_become(status) for status in OPEN)
    reached, more = set(), {JobStatus.VALIDATING_FILES}
    while more:
        reached |= more
        more = {following for status in more for following in may_become(status)} - reached
    assert reached == set(JobStatus)


def test_sources_are_the_other_direction() -> None:
    for status in JobStatus:
        assert all(status in sources_of(following) for following in may_become(status))
    assert sources_of(JobStatus.SUCCEEDED) == HELD


def test_a_job_waits_or_is_held_or_paused() -> None:
    assert WAITING | HELD | {JobStatus.PAUSED} == OPEN
    assert not WAITING & HELD


def test_the_index_of_open_jobs_has_the_same_words() -> None:
    assert set(re.findall(r"'(\w+)'", str(IS_OPEN))) == OPEN
