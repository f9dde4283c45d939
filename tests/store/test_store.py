"""One walk through a store, on both databases: who, what, by whom, what came out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import UnknownIdError
from cohort.store.jobs.claims import NewCheckpoint, NewModel
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Project
from cohort.store.store import ProjectStore, Store, open_store


def _adapter(folder: Path) -> Path:
    (folder / "deep").mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "deep" / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def test_a_job_from_its_key_to_its_model(store: Store, project: Project, own: ProjectStore, tmp_path: Path) -> None:
    key = store.keys.create(project.id, actor="test")
    caller = store.keys.find(key.text)
    assert caller is not None
    assert caller.project == project
    assert caller.key.id == key.key.id

    file = own.files.add([b"one\n", b"two\n"], filename="rows.jsonl", purpose="fine-tune", max_bytes=100)
    assert b"".join(own.files.content(file.id)) == b"one\ntwo\n"
    new = NewJob(base_model="base", request={"model": "base"}, training_file=file.id, metadata={"team": "a"})
    job = own.jobs.create(new, events=[NewEvent(message="Created.")])
    assert job.status is JobStatus.VALIDATING_FILES

    claimed = store.claims.claim_next("runner", seconds=60)
    assert claimed is not None
    claim, same = claimed
    assert same.id == job.id
    store.claims.update(claim, status=JobStatus.QUEUED)
    claimed = store.claims.claim_next("runner", seconds=60, statuses=[JobStatus.QUEUED])
    assert claimed is not None
    claim, _ = claimed
    store.claims.update(claim, status=JobStatus.RUNNING, run_directory="runs/1", events=[NewEvent(message="Started.")])
    blob = store.blobs.write_folder(project.id, _adapter(tmp_path / "adapter"))
    name = "ft:base:acme::1"
    checkpoint = NewCheckpoint(step_number=3, model=f"{name}:ckpt-step-3", metrics={"train_loss": 1.5}, blob=None)
    store.claims.update(claim, checkpoint=checkpoint, usage={UsageKind.TRAINED_TOKENS: 50})
    done = store.claims.update(
        claim,
        status=JobStatus.SUCCEEDED,
        model=NewModel(id=name, blob=blob.name),
        trained_tokens=100,
        usage={UsageKind.TRAINED_TOKENS: 100},
    )
    assert (done.status, done.fine_tuned_model, done.trained_tokens) == (JobStatus.SUCCEEDED, name, 100)
    assert [event.message for event in own.jobs.events(job.id).items] == ["Started.", "Created."]
    assert [each.step_number for each in own.jobs.checkpoints(job.id).items] == [3]
    assert [model.id for model in own.models.list().items] == [name]
    store.blobs.folder.fetch_folder(blob.name, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "deep" / "adapter_model.safetensors").read_bytes() == b"weights"
    assert [(row.kind, row.amount) for row in own.usage.by_day()] == [(UsageKind.TRAINED_TOKENS, 100)]


def test_a_foreign_id_is_an_unknown_id(store: Store, own: ProjectStore, other_project: Project) -> None:
    file = own.files.add([b"x"], filename="a", purpose="fine-tune", max_bytes=10)
    job = own.jobs.create(NewJob(base_model="base", request={}), events=[NewEvent(message="Created.")])
    event = own.jobs.events(job.id).items[0]
    other = store.project(other_project.id)
    others = other.jobs.create(NewJob(base_model="base", request={}))
    for ask in (
        lambda: other.files.get(file.id),
        lambda: other.files.content(file.id),
        lambda: other.files.content_for_job(file.id),
        lambda: other.files.delete(file.id),
        lambda: other.files.list(after=file.id),
        lambda: other.jobs.get(job.id),
        lambda: other.jobs.cancel(job.id),
        lambda: other.jobs.pause(job.id),
        lambda: other.jobs.resume(job.id),
        lambda: other.jobs.list(after=job.id),
        lambda: other.jobs.events(job.id),
        lambda: other.jobs.events(others.id, after=event.id),
        lambda: other.jobs.events_since(job.id, 0),
        lambda: other.jobs.checkpoints(job.id),
        lambda: other.models.get("ft:base:acme::1"),
        lambda: other.models.delete("ft:base:acme::1"),
    ):
        with pytest.raises(UnknownIdError) as raised:
            ask()
        # the same words as of an id that never was
        assert str(raised.value).replace(raised.value.id, "ID") in {
            f"no {kind} with id 'ID'; list those that are there and choose one of them"
            for kind in ("file", "fine-tuning job", "model", "event")
        }
    assert other.files.list().items == []
    assert [each.id for each in other.jobs.list().items] == [others.id]


def test_what_was_stored_is_there_for_the_next_process(
    place: str, store: Store, own: ProjectStore, tmp_path: Path
) -> None:
    job = own.jobs.create(NewJob(base_model="base", request={"a": [1, None, "ä"]}, metadata={"ä": "ö"}))
    store.close()
    again = open_store(place, blobs=tmp_path / "blobs", clock=ManualClock())
    assert again.project(own.project_id).jobs.get(job.id) == job
    again.close()


def test_a_url_needs_a_place_for_blobs() -> None:
    with pytest.raises(InputError, match=r"blobs: found none.*s3://"):
        open_store("postgresql://cohort@/nothing")


def test_the_readiness_check_writes_and_removes(store: Store) -> None:
    store.check()
    assert list(store.blobs.folder.names()) == []
