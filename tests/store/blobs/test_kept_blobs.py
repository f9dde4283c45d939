"""Blobs and their rows: nothing is lost, nothing is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.store.blobs.blob_folder import BlobFolder, Written
from cohort.store.enums import JobStatus
from cohort.store.errors import QuotaExceededError, StorageFull, StoreUnavailable, UnknownIdError
from cohort.store.jobs.claims import NewCheckpoint, NewModel
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Project
from cohort.store.store import ProjectStore, Store
from cohort.store.tenants.tenants import Quotas

DAY = 86400.0


def _names(store: Store) -> list[str]:
    return sorted(store.blobs.folder.names())


def test_a_deleted_file_is_collected_and_others_stay(store: Store, own: ProjectStore) -> None:
    kept, gone = (own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9) for _ in range(2))
    own.files.delete(gone.id)
    assert store.collect_blobs() == 1
    assert _names(store) == [kept.blob]
    assert store.collect_blobs() == 0
    assert b"".join(own.files.content(kept.id)) == b"x"


def test_a_file_of_an_open_job_stays_until_its_end(store: Store, own: ProjectStore) -> None:
    file = own.files.add([b"rows"], filename="a", purpose="fine-tune", max_bytes=9)
    job = own.jobs.create(NewJob(base_model="base", request={}, validation_file=file.id))
    own.files.delete(file.id)
    with pytest.raises(UnknownIdError):
        own.files.get(file.id)
    assert store.collect_blobs() == 0
    assert b"".join(own.files.content_for_job(file.id)) == b"rows"
    own.jobs.cancel(job.id)
    assert store.collect_blobs() == 1
    with pytest.raises(UnknownIdError):
        own.files.content_for_job(file.id)


def test_an_expired_file_is_unknown_at_once_and_collected(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    file = own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9, lifetime_seconds=3600)
    assert file.expires_at == file.created_at + 3600
    clock.advance(3599)
    assert own.files.get(file.id) == file
    clock.advance(1)
    with pytest.raises(UnknownIdError):
        own.files.get(file.id)
    assert own.files.list().items == []
    assert store.collect_blobs() == 1
    assert _names(store) == []


def test_a_blob_whose_writer_was_killed_is_collected_after_a_day(
    store: Store, own: ProjectStore, clock: ManualClock
) -> None:
    blob = store.blobs.write(own.project_id, [b"x"])
    clock.advance(DAY - 1)
    assert store.collect_blobs() == 0
    clock.advance(2)
    assert store.collect_blobs() == 1
    assert _names(store) == []
    # a writer that was only slow is told
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    found = store.claims.claim(job.id, "runner", seconds=60)
    assert found is not None
    with pytest.raises(StoreUnavailable, match="write it again"):
        store.claims.update(found[0], model=NewModel(id="ft:x", blob=blob.name))
    assert own.models.list().items == []


def test_what_was_written_of_a_blob_goes_with_it(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    blob = store.blobs.write(own.project_id, [b"x"])
    path = store.blobs.folder.local_path(blob.name)
    assert path is not None
    # as a writer leaves it that is killed before the last byte
    partial = path.rename(path.with_name(f".{path.name}.x1.partial"))
    assert _names(store) == [blob.name]
    clock.advance(DAY + 1)
    assert store.collect_blobs() == 1
    assert not partial.exists()
    assert _names(store) == []


def test_each_attempt_that_fails_is_collected_at_once(
    store: Store, own: ProjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> Written:
        raise StorageFull("simulated")

    with monkeypatch.context() as patched:
        for name in ("write", "write_folder"):
            patched.setattr(BlobFolder, name, full)
        for _ in range(2):
            with pytest.raises(StorageFull, match="simulated"):
                store.blobs.write(own.project_id, [b"x"])
        with pytest.raises(StorageFull, match="simulated"):
            store.blobs.write_folder(own.project_id, tmp_path)
    assert store.collect_blobs() == 3
    assert store.collect_blobs() == 0


def test_a_blob_whose_last_byte_comes_after_it_was_given_up_is_none(
    store: Store, own: ProjectStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.blobs.folder.write

    def slow() -> Iterator[bytes]:
        yield b"x"
        # as of a machine that was suspended
        clock.advance(2 * DAY)
        store.collect_blobs()
        yield b"y"

    # what was being written is gone, too
    with pytest.raises(StoreUnavailable):
        store.blobs.write(own.project_id, slow())
    assert _names(store) == []

    def written_too_late(name: str, chunks: Iterable[bytes], *, limit: int) -> Written:
        clock.advance(2 * DAY)
        store.collect_blobs()
        return write(name, chunks, limit=limit)

    monkeypatch.setattr(store.blobs.folder, "write", written_too_late)
    with pytest.raises(StoreUnavailable, match="write it again"):
        store.blobs.write(own.project_id, [b"x"])
    assert _names(store) == []


def test_a_blob_waits_for_its_owner_until_it_is_given_up(store: Store, own: ProjectStore, clock: ManualClock) -> None:
    name = store.blobs.write(own.project_id, [b"x"]).name
    assert store.blobs.waits_for_owner(name)
    clock.advance(2 * DAY)
    store.collect_blobs()
    assert not store.blobs.waits_for_owner(name)
    file = own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9)
    assert file.blob is not None
    # it has one
    assert not store.blobs.waits_for_owner(file.blob)


def test_a_collection_that_was_killed_in_the_middle_goes_on(store: Store, own: ProjectStore) -> None:
    file = own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=9)
    own.files.delete(file.id)
    assert file.blob is not None
    store.blobs.folder.remove(file.blob)
    assert store.collect_blobs() == 1
    assert store.collect_blobs() == 0


def test_adapters_are_kept_with_their_rows_and_go_with_them(
    store: Store, own: ProjectStore, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_bytes(b"123")
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    found = store.claims.claim(job.id, "runner", seconds=60)
    assert found is not None
    blobs = [store.blobs.write_folder(own.project_id, tmp_path / "adapter") for _ in range(3)]
    first, repeated, last = (blob.name for blob in blobs)
    for name in (first, repeated):
        made = NewCheckpoint(step_number=1, model="ft:x:ckpt-step-1", metrics={}, blob=name)
        store.claims.update(found[0], checkpoint=made)
    store.claims.update(found[0], model=NewModel(id="ft:x", blob=last))
    clock.advance(2 * DAY)
    # the second checkpoint of the same step was not taken
    assert store.collect_blobs() == 1
    assert _names(store) == sorted([first, last])
    own.models.delete("ft:x")
    assert store.collect_blobs() == 1
    assert _names(store) == [first]
    own.models.delete("ft:x:ckpt-step-1")
    assert own.usage.stored_bytes() == 0
    assert store.collect_blobs() == 1
    assert _names(store) == []


def test_a_checkpoint_is_deleted_by_its_name_and_only_in_its_project(
    store: Store, own: ProjectStore, other_project: Project
) -> None:
    job = own.jobs.create(NewJob(base_model="base", request={}, status=JobStatus.QUEUED))
    found = store.claims.claim(job.id, "runner", seconds=60)
    assert found is not None
    name = "ft:x:ckpt-step-1"
    made = NewCheckpoint(step_number=1, model=name, metrics={}, blob=None)
    store.claims.update(found[0], checkpoint=made, model=NewModel(id="ft:x", blob=None))
    with pytest.raises(UnknownIdError):
        store.project(other_project.id).models.delete(name)
    own.models.delete(name)
    assert own.models.checkpoint(name) is None
    assert not own.jobs.checkpoints(job.id).items
    assert own.models.get("ft:x").id == "ft:x"
    # a second time it is unknown, and a runner that comes by its step again does not bring it back
    with pytest.raises(UnknownIdError):
        own.models.delete(name)
    store.claims.update(found[0], checkpoint=made)
    assert own.models.checkpoint(name) is None


def test_stored_bytes_have_a_quota(store: Store, own: ProjectStore) -> None:
    store.tenants.set_quotas(own.project_id, Quotas(max_stored_bytes=10), actor="test")

    def add(count: int) -> None:
        own.files.add([bytes(count)], filename="a", purpose="fine-tune", max_bytes=1000)

    add(6)
    with pytest.raises(QuotaExceededError, match="max_stored_bytes of this project is 10, 6 of it are used"):
        add(5)
    assert own.usage.stored_bytes() == 6
    add(4)
    with pytest.raises(QuotaExceededError):
        add(0)
    own.files.delete(own.files.list().items[0].id)
    add(4)


def test_one_process_keeps_house_at_a_time_and_charges_bytes_once(
    store: Store, own: ProjectStore, clock: ManualClock
) -> None:
    own.files.add([bytes(100)], filename="a", purpose="fine-tune", max_bytes=1000)
    first = store.keep_house("a")
    assert first is not None
    assert first.charged_days == 0
    assert store.keep_house("b") is None
    clock.advance(DAY / 2)
    second = store.keep_house("b")
    assert second is not None
    assert second.charged_days == 0.5
    assert store.keep_house("a") is None
    assert [(row.kind, row.amount) for row in own.usage.by_day()] == [("byte_days", 50.0)]
