"""Those who wait are told: at once by PostgreSQL, at the next look by SQLite."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.store.changes import Change, watch_changes
from cohort.store.errors import StoreUnavailable
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import ProjectStore, Store, open_store
from tests.support.postgresql_server import PostgresServer

NEW = NewJob(base_model="base", request={})


def test_a_new_job_of_another_process_is_told(place: str, store: Store, own: ProjectStore, tmp_path: Path) -> None:
    with closing(store.changes()) as changes, closing(open_store(place, blobs=tmp_path / "blobs")) as other:
        job = other.project(own.project_id).jobs.create(NEW, events=[NewEvent(message="Created.")])
        told = changes.wait(20)
        if store.database.is_postgresql:
            assert set(told) == {Change(kind="event", id=job.id), Change(kind="job", id=job.id)}
        else:
            assert told == (Change(kind="any"),)
        assert changes.wait(0) == ()
        own.jobs.cancel(job.id)
        assert changes.wait(20)


def test_what_is_rolled_back_is_not_told(store: Store, own: ProjectStore) -> None:
    with closing(store.changes()) as changes:
        with suppress(ZeroDivisionError), store.database.write() as connection:
            store.database.announce(connection, kind="job", id="ftjob-1")
            raise ZeroDivisionError
        assert changes.wait(0.01) == ()


def test_waiting_takes_the_clocks_time(store: Store) -> None:
    if store.database.is_postgresql:
        pytest.skip("PostgreSQL tells, nothing is slept")
    clock = ManualClock()
    with closing(watch_changes(store.database, clock=clock)) as changes:
        assert changes.wait(3.25) == ()
        assert clock.monotonic() == pytest.approx(3.25)


def test_a_database_in_memory_tells_its_own_changes() -> None:
    with (
        closing(open_store("sqlite://", blobs="memory://changes")) as store,
        closing(watch_changes(store.database, clock=ManualClock())) as changes,
    ):
        store.tenants.add_organisation("acme", actor="test")
        assert changes.wait(1) == (Change(kind="any"),)
        assert changes.wait(1) == ()


def test_a_listener_connects_again_after_its_server_was_killed(
    postgresql: PostgresServer, migrated_database: str, tmp_path: Path
) -> None:
    place = postgresql.url(postgresql.new_database(template=migrated_database))
    with closing(open_store(place, blobs=tmp_path / "blobs")) as store, closing(store.changes()) as changes:
        postgresql.kill()
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    changes.wait(1)
        finally:
            postgresql.start()
        # what was missed is not known
        assert changes.wait(1) == (Change(kind="any"),)
        with store.database.write() as connection:
            store.database.announce(connection, kind="job", id="ftjob-1")
        assert changes.wait(20) == (Change(kind="job", id="ftjob-1"),)
