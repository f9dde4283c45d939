"""The store under clients and runners that fail in all ways, on a simulated clock: one seed is one history.

To see a history: ``python -m tests.support.service_simulation.history SEED``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection

from cohort.store.enums import JobStatus, UsageKind
from cohort.store.jobs import claims, project_jobs
from cohort.store.tables import jobs
from cohort.store.tenants.usage import add_usage
from tests.support.service_simulation.history import play
from tests.support.service_simulation.invariants import BrokenInvariantError

# 21, 22: a runner wrote a status that its client had just made impossible: it looks again now, and goes on;
# 1064, 51057: the simulation took a client's change for that of a runner whose claim was lost
SEEDS_THAT_FAILED = (21, 22, 1064, 51057)


@pytest.mark.parametrize("seed", [*range(4), *SEEDS_THAT_FAILED])
def test_nothing_accepted_is_lost_or_done_twice(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_a_thousand_histories(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 50):
        play(seed, tmp_path / str(seed))


def test_a_seed_is_a_history_byte_for_byte_and_everything_fails_in_it(tmp_path: Path) -> None:
    told = ""
    for seed in (1, 3, 4):
        told += play(seed, tmp_path / f"first{seed}")
    assert told.startswith(play(1, tmp_path / "again"))
    for what in (
        "the database is away",
        "the disk is full",
        "the clock jumps",
        "dies with",
        "freezes",
        "the worker of",
        "has lost",
        "loses its server",
        "fault at commit: StorageFull",
        "fault at committed: StoreUnavailable",
        "fault at committed: ProcessDied",
    ):
        assert what in told, what


Breaking = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        # a runner whose claim another one has may write
        (lambda patch: patch.setattr(claims.Claims, "_own", lambda _, claim: jobs.c.id == claim.job_id), "with claim"),
        (lambda patch: patch.setattr(project_jobs, "check_open_jobs", lambda *_: None), "open jobs of"),
        # any status may follow any other
        (lambda patch: patch.setattr(project_jobs, "sources_of", lambda _: frozenset(JobStatus)), "went from"),
        # what a job used is added each time it is told
        (lambda patch: patch.setattr(claims, "add_job_usage", _adding), "charged"),
    ],
    ids=["fence", "quota", "transitions", "usage"],
)
def test_a_store_without_one_of_its_guards_is_found_out(
    broken: Breaking, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    def play_until_it_breaks() -> None:
        for seed in range(30):
            play(seed, tmp_path / str(seed))

    with pytest.raises(BrokenInvariantError, match=says):
        play_until_it_breaks()


def _adding(
    connection: Connection, *, totals: dict[UsageKind, float], project_id: str, seconds: float, **_: str
) -> None:
    add_usage(connection, project_id=project_id, seconds=seconds, amounts=totals)
