"""Deleted files leave the disk of a running service, once an hour, whatever else its node does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.service.jobs.housekeeping.housekeeper import Housekeeper
from cohort.store.database import Database
from cohort.store.errors import StoreUnavailable
from cohort.store.store import Store, open_store


def _turn(housekeeper: Housekeeper) -> None:
    with ThreadPoolExecutor(1) as threads:
        housekeeper.turn(threads)


def _deleted_file(store: Store, project_id: str) -> None:
    files = store.project(project_id).files
    files.delete(files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9).id)


def test_deleted_files_leave_the_disk_once_an_hour(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path / "service", clock=clock)
    organisation = store.tenants.add_organisation("acme", actor="test")
    project = store.tenants.add_project(organisation.id, "default", actor="test")
    housekeeper = Housekeeper(store, owner="node", folder=tmp_path, clock=clock)
    for _ in range(2):
        _deleted_file(store, project.id)
        _turn(housekeeper)
        assert list(store.blobs.folder.names()) == []
        _deleted_file(store, project.id)
        clock.advance(1800)
        _turn(housekeeper)
        assert len(list(store.blobs.folder.names())) == 1
        clock.advance(1800)
    store.close()


def test_a_store_that_is_gone_is_asked_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def gone(_: object) -> None:
        raise StoreUnavailable("simulated")

    store = open_store(tmp_path / "service")
    failing = Store(Database(store.database.engine, faults=gone), store.blobs.folder)
    _turn(Housekeeper(failing, owner="node", folder=tmp_path))
    assert "housekeeping is done later: simulated" in caplog.text
    store.close()
