"""What has ended is kept as long as the retention says, and what belongs to others stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import UnknownIdError
from cohort.store.jobs.claims import NewCheckpoint, NewModel
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Job
from cohort.store.retention import Retention
from cohort.store.store import ProjectStore, Store

DAY = 86400.0


def adapter(store: Store, own: ProjectStore, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    return store.blobs.write_folder(own.project_id, folder).name


def done(store: Store, own: ProjectStore, name: str, folder: Path) -> Job:
    """Return a job that has just succeeded, with a model and a checkpoint of bytes of their own."""
    new = NewJob(base_model="base", request={}, status=JobStatus.QUEUED, metadata={"a": "b"}, idempotency_key=name)
    job = own.jobs.create(new, events=[NewEvent(message="Created.")])
    found = store.claims.claim(job.id, "node", seconds=60)
    assert found is not None
    claim, _ = found
    store.claims.update(claim, status=JobStatus.RUNNING)
    return store.claims.update(
        claim,
        status=JobStatus.SUCCEEDED,
        events=[NewEvent(message="Done.")],
        usage={UsageKind.TRAINED_TOKENS: 5},
        model=NewModel(id=f"ft:{name}", blob=adapter(store, own, folder)),
        checkpoint=NewCheckpoint(
            step_number=3, model=f"ft:{name}:ckpt-step-3", metrics={}, blob=adapter(store, own, folder)
        ),
    )


def messages(own: ProjectStore, job: Job) -> list[str]:
    return [event.message for event in own.jobs.events(job.id).items]


def test_events_go_first_then_the_job_and_its_model_stays(
    store: Store, own: ProjectStore, clock: ManualClock, tmp_path: Path
) -> None:
    retention = Retention(event_seconds=2 * DAY, job_seconds=5 * DAY)
    old = done(store, own, "old", tmp_path / "adapter")
    clock.advance(3 * DAY)
    young, waits = done(store, own, "young", tmp_path / "adapter"), own.jobs.create(NewJob(base_model="b", request={}))
    own.jobs.pause(own.jobs.create(NewJob(base_model="b", request={}, status=JobStatus.QUEUED)).id)
    assert store.keep_house("a", retention=retention) is not None
    assert (messages(own, old), messages(own, young)) == ([], ["Done.", "Created."])
    assert own.jobs.get(old.id).num_events == 2
    assert len(own.jobs.checkpoints(old.id).items) == 1

    clock.advance(2.5 * DAY)
    kept = len(list(store.blobs.folder.names()))
    housekeeping = store.keep_house("a", retention=retention)
    assert housekeeping is not None
    assert housekeeping.num_jobs == 1
    with pytest.raises(UnknownIdError):
        own.jobs.get(old.id)
    assert own.models.checkpoint("ft:old:ckpt-step-3") is None
    # its checkpoint's bytes are gone, those of its model are not
    assert len(list(store.blobs.folder.names())) == kept - 1
    assert own.models.get("ft:old").job_id is None
    assert own.models.get("ft:young").job_id == young.id
    assert {job.id for job in own.jobs.list(metadata={"a": "b"}).items} == {young.id}
    # what was used is still charged, and open jobs have no end
    assert sum(row.amount for row in own.usage.by_day() if row.kind is UsageKind.TRAINED_TOKENS) == 10
    assert own.jobs.get(waits.id).status is JobStatus.VALIDATING_FILES
    assert len(own.jobs.list().items) == 3


def test_without_a_word_everything_stays(store: Store, own: ProjectStore, clock: ManualClock, tmp_path: Path) -> None:
    job = done(store, own, "old", tmp_path / "adapter")
    clock.advance(4000 * DAY)
    found = store.keep_house("a", retention=Retention())
    assert found is not None
    assert found.num_jobs == 0
    assert messages(own, job) == ["Done.", "Created."]


def test_more_jobs_than_one_transaction_takes(
    store: Store, own: ProjectStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.store.retention._JOBS_AT_ONCE", 20)
    for _ in range(45):
        own.jobs.cancel(own.jobs.create(NewJob(base_model="b", request={})).id)
    clock.advance(2 * DAY)
    found = store.keep_house("a", retention=Retention(event_seconds=DAY, job_seconds=DAY))
    assert found is not None
    assert found.num_jobs == 45
    assert own.jobs.list().items == []


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="run_seconds must be above 0"):
        Retention(run_seconds=0)
