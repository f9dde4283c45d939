"""What clients sent goes from a node's disk when it is needed no longer, however the job or the request ended."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from cohort.core.clock import ManualClock
from cohort.service.jobs.housekeeping.leftovers import (
    forget_ended_tasks,
    remove_folders_of_ended_jobs,
    remove_untouched,
)
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.local_queue import LocalQueue
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import Store
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.store import open_queue

HOUR = 3600.0


def _make_old(path: Path, *, hours: float) -> None:
    at = time.time() - hours * HOUR
    for each in (*path.rglob("*"), path):
        os.utime(each, (at, at), follow_symlinks=False)


def test_rows_of_jobs_that_ended_elsewhere_go_after_an_hour(tmp_path: Path, store: Store, clock: ManualClock) -> None:
    organisation = store.tenants.add_organisation("acme", actor="test")
    own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
    new, folders = NewJob(base_model="b", request={}), tmp_path / "jobs"
    cancelled, is_open = (own.jobs.create(new).id for _ in range(2))
    for name in (cancelled, is_open, "ftjob-forgotten", "ftjob-unknown"):
        JobFolder(folders, name).keep_task({"a": 1})
        (folders / name / "train.jsonl").write_text("{}\n")
    _make_old(folders / "ftjob-forgotten", hours=25)
    own.jobs.cancel(cancelled)
    clock.advance(HOUR - 1)
    # its node may still be letting go of it; one that the database does not know may be of a job that is being made
    assert remove_folders_of_ended_jobs(store, folders) == 1
    assert sorted(path.name for path in folders.iterdir()) == sorted([cancelled, is_open, "ftjob-unknown"])
    clock.advance(1)
    assert remove_folders_of_ended_jobs(store, folders) == 1
    assert sorted(path.name for path in folders.iterdir()) == sorted([is_open, "ftjob-unknown"])
    assert remove_folders_of_ended_jobs(store, tmp_path / "nowhere") == 0


def test_tasks_of_jobs_that_ended_leave_the_queue(tmp_path: Path, store: Store, clock: ManualClock) -> None:
    organisation = store.tenants.add_organisation("acme", actor="test")
    own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
    ended, is_open = (own.jobs.create(NewJob(base_model="b", request={})).id for _ in range(2))
    forget_ended_tasks(store, tmp_path / "queue")
    states = {ended: TaskState.REMOVED, is_open: TaskState.HELD, "ftjob-gone": TaskState.DONE}
    # a worker may still train one that the database does not know
    states["ftjob-running"] = TaskState.RUNNING
    with closing(LocalQueue(tmp_path / "queue", runs=tmp_path / "runs")), open_queue(tmp_path / "queue") as queue:
        for name, state in states.items():
            task = QueuedTask(name=name, source="", task={}, digests={}, priority=0, added_at="now", state=state)
            queue.add([task])
        own.jobs.cancel(ended)
        forget_ended_tasks(store, tmp_path / "queue")
        assert {task.name for task in queue.tasks()} == {ended, is_open, "ftjob-running"}
        clock.advance(HOUR)
        forget_ended_tasks(store, tmp_path / "queue")
        assert {task.name for task in queue.tasks()} == {is_open, "ftjob-running"}


def test_files_of_requests_go_when_they_were_not_written_for_a_day(tmp_path: Path) -> None:
    uploads, scratch = tmp_path / "uploads", tmp_path / "scratch"
    (scratch / "plan-killed" / "job").mkdir(parents=True)
    (scratch / "plan-killed" / "job" / "train.jsonl").write_text("{}\n")
    (scratch / "plan-killed" / "dangling").symlink_to(tmp_path / "gone")
    _make_old(scratch / "plan-killed", hours=25)
    # its folder is older than what is in it
    (scratch / "plan-now").mkdir()
    (scratch / "plan-now" / "rows").write_text("{}\n")
    os.utime(scratch / "plan-now", (0, 0))
    uploads.mkdir()
    for name, hours in (("upload-killed", 25), ("upload-slow", 23)):
        (uploads / name).write_bytes(b"x")
        _make_old(uploads / name, hours=hours)
    remove_untouched([uploads, scratch, tmp_path / "nowhere"])
    assert [path.name for path in uploads.iterdir()] == ["upload-slow"]
    assert [path.name for path in scratch.iterdir()] == ["plan-now"]
