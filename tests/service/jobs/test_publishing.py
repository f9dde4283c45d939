"""A job's adapter is stored once, and again where an earlier attempt was taken for abandoned."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.service.jobs import publishing
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.publishing import publish
from cohort.service.jobs.run_outcome import RunOutcome
from cohort.store.enums import JobKind, JobStatus
from cohort.store.errors import StorageFull
from cohort.store.jobs.claims import Claims
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import Store

DAY = 86400.0


@pytest.mark.parametrize("days", [0.5, 2.0])
def test_a_weekend_without_room_costs_no_job(
    days: float, tmp_path: Path, store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    organisation = store.tenants.add_organisation("acme", actor="test")
    own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
    new = NewJob(base_model="base", request={}, status=JobStatus.QUEUED, kind=JobKind.TASK)
    found = store.claims.claim(own.jobs.create(new).id, "node", seconds=30 * DAY)
    assert found is not None
    claim, job = found
    job = store.claims.update(claim, status=JobStatus.RUNNING)
    adapter = tmp_path / "best"
    adapter.mkdir()
    (adapter / "weights").write_bytes(b"123")
    outcome = RunOutcome(
        adapter=adapter, step=3, parameters={"r": 8}, epochs=1.0, metrics={}, trained_tokens=9, usage={}, results=b"a,b"
    )
    monkeypatch.setattr(publishing, "read_outcome", lambda _: outcome)
    folder, run = JobFolder(tmp_path / "jobs", job.id), tmp_path / "run"

    def full(*_: object, **__: object) -> None:
        raise StorageFull("simulated")

    with monkeypatch.context() as patched:
        patched.setattr(Claims, "update", full)
        with pytest.raises(StorageFull):
            publish(store, claim, job, folder=folder, run=run, organisation="acme")
    first = {folder.notes["adapter_blob"], folder.notes["checkpoint_blob"]}
    clock.advance(days * DAY)
    store.collect_blobs()
    done = publish(store, claim, job, folder=folder, run=run, organisation="acme")
    assert done.status is JobStatus.SUCCEEDED
    last = {folder.notes["adapter_blob"], folder.notes["checkpoint_blob"]}
    assert (last == first) == (days < 1)
    assert not last & first or days < 1
    # nothing is stored twice
    assert len(list(store.blobs.folder.names())) == 3
    assert [file.filename for file in own.files.list().items] == [f"{job.id}-results.csv"]
