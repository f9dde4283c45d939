"""Whose job is next on a free worker."""

from __future__ import annotations

import json
import random

import pytest

from cohort.scheduling.shares.jobs import JobShares, WaitingJob


def job(name: str, seconds: float = 10.0, *, priority: int = 0) -> WaitingJob:
    return WaitingJob(job_id=name, tenant=name[0], gpu_seconds=seconds, priority=priority)


def ids(jobs: list[WaitingJob]) -> list[str]:
    return [waiting.job_id for waiting in jobs]


def test_a_flood_waits_behind_anothers_first_job() -> None:
    shares = JobShares()
    flood = [job(f"a{number}") for number in range(1000)]
    first = shares.next_job(flood)
    assert first is not None
    shares.started(first)
    assert ids(shares.order([*flood[1:], job("b0")]))[:3] == ["b0", "a1", "a2"]


def test_priority_counts_among_a_tenants_own() -> None:
    shares = JobShares()
    waiting = [job("a0"), job("a1", priority=9), job("b0")]
    assert ids(shares.order(waiting)) == ["a1", "b0", "a0"]


def test_with_nothing_waiting_and_nothing_running_all_are_even() -> None:
    shares = JobShares()
    assert shares.next_job([job("a0")]) is not None
    shares.started(job("a0"))
    assert shares.next_job([]) is None
    assert shares.accounts.lead("a") == 10.0, "it runs, so it is not forgotten"
    shares.ended("a0", gpu_seconds=10.0)
    assert shares.next_job([]) is None
    assert shares.accounts.lead("a") == 0.0


def test_one_whose_jobs_end_early_loses_nothing_by_what_was_expected() -> None:
    """Both expect 100 s; a's jobs take 25: over the hours both have the same GPU time."""
    shares, took = JobShares(), {"a": 0.0, "b": 0.0}
    waiting = [job(f"a{number}", 100.0) for number in range(400)] + [job(f"b{n}", 100.0) for n in range(100)]
    chance = random.Random(0)
    running: list[WaitingJob] = []
    for _ in range(400):
        if len(running) == 8:
            ends = running.pop(chance.randrange(8))
            seconds = 25.0 if ends.tenant == "a" else 100.0
            shares.ended(ends.job_id, gpu_seconds=seconds)
            took[ends.tenant] += seconds
        following = shares.next_job(waiting)
        assert following is not None
        waiting.remove(following)
        shares.started(following)
        running.append(following)
    assert took["a"] / sum(took.values()) == pytest.approx(0.5, abs=0.03)


def test_a_new_estimate_moves_the_account_and_an_unknown_job_nothing() -> None:
    shares = JobShares()
    shares.started(job("a0", 100.0))
    shares.corrected("a0", gpu_seconds=40.0)
    shares.corrected("gone", gpu_seconds=40.0)
    shares.ended("gone", gpu_seconds=40.0)
    assert shares.accounts.lead("a") == 40.0


def test_a_restart_keeps_charges_and_what_runs() -> None:
    shares = JobShares({"a": 2.0})
    waiting = [job(f"{tenant}{number}") for tenant in "ab" for number in range(5)]
    for _ in range(4):
        following = shares.next_job(waiting)
        assert following is not None
        waiting.remove(following)
        shares.started(following)
    again = JobShares.from_record(json.loads(json.dumps(shares.to_record())), weights={"a": 2.0})
    for either in (shares, again):
        either.ended("a0", gpu_seconds=1.0)
    assert again.to_record() == shares.to_record()
    assert again.order(waiting) == shares.order(waiting)
