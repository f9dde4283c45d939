"""A node that was killed goes on with what it had, or lets go of what it has no longer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import StorageFullError
from cohort.service.jobs.housekeeping.leftovers import remove_folders_of_ended_jobs
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_parts import JobParts
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.local_queue import LocalQueue
from cohort.service.jobs.runner import JobRunner
from cohort.service.jobs.runner_settings import RunnerSettings
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.jobs.claims import Claim, Claims
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.records import Job
from cohort.store.store import ProjectStore, Store, open_store
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.store import open_queue
from cohort.task_queue.workers.pool import PoolRequest
from tests.runs.small_run import write_small_run


class _Dispatching:
    is_alive = True

    def keep_alive(self) -> None:
        pass

    def stop(self, *, wait_seconds: float) -> bool:
        return True


@dataclass
class Node:
    """A node whose turns the test takes."""

    runner: JobRunner
    parts: JobParts
    store: Store
    own: ProjectStore

    def turn(self) -> None:
        self.runner.turn(self.parts, _Dispatching())

    def had(self, *, state: TaskState) -> Job:
        """Return a job that the node had when it was killed."""
        request = {"model": "base", "training_file": "file-rows"}
        new = NewJob(base_model="base", request=request, status=JobStatus.QUEUED)
        found = self.store.claims.claim(self.own.jobs.create(new).id, "node", seconds=3600)
        assert found is not None
        claim, job = found
        folder = JobFolder(self.parts.folders, job.id)
        folder.keep_claim(claim)
        folder.keep_task({"model": "base"})
        _, run, _ = write_small_run(self.parts.queue.run_directory(job.id))
        run.close()
        with open_queue(self.parts.queue.directory) as queue:
            task = QueuedTask(name=job.id, source="", task={}, digests={}, priority=0, added_at="now", state=state)
            queue.add([task])
        return self.store.claims.update(claim, status=JobStatus.RUNNING)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(open_store(tmp_path / "service")) as store, ThreadPoolExecutor(1) as threads:
        organisation = store.tenants.add_organisation("acme", actor="test")
        own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
        runner = JobRunner(
            store,
            folder=tmp_path / "node",
            name="node",
            bases={"base": BaseForJobs(name="base", path="base", max_length=64)},
            places=PoolRequest(),
            settings=RunnerSettings(min_free_bytes=0),
        )
        with closing(LocalQueue(tmp_path / "node" / "queue", runs=tmp_path / "node" / "runs")) as queue:
            yield Node(runner, runner.parts(queue, threads), store, own)


def test_a_job_that_was_cancelled_while_its_node_was_off_is_charged_and_let_go(node: Node) -> None:
    job = node.had(state=TaskState.REMOVED)
    node.own.jobs.cancel(job.id)
    node.turn()
    assert node.runner.num_held == 0
    assert JobFolder.all_in(node.parts.folders) == []
    used = {row.kind: row.amount for row in node.own.usage.by_day()}
    assert used[UsageKind.TRAINED_TOKENS] > 0
    # and once
    node.turn()
    assert used == {row.kind: row.amount for row in node.own.usage.by_day()}


def test_a_cancelled_job_whose_worker_still_saves_its_state_is_charged_at_the_end(node: Node) -> None:
    job = node.had(state=TaskState.RUNNING)
    node.own.jobs.cancel(job.id)
    for _ in range(2):
        node.turn()
        assert node.own.usage.by_day() == []
    # however long that takes, its folder stays
    assert remove_folders_of_ended_jobs(node.store, node.parts.folders) == 0
    with open_queue(node.parts.queue.directory) as queue:
        queue.update(job.id, state=TaskState.REMOVED)
    node.turn()
    assert {row.kind for row in node.own.usage.by_day()} >= {UsageKind.TRAINED_TOKENS}
    assert JobFolder.all_in(node.parts.folders) == []
    assert node.runner.num_held == 0


def test_a_full_disk_keeps_a_cancelled_job_and_no_claim_of_another_runs_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [node.had(state=TaskState.RUNNING) for _ in range(2)]
    node.turn()
    held = node.runner._held
    # in the order in which the node looks at them
    cancelled, other = sorted(jobs, key=lambda job: list(held).index(job.id))
    node.own.jobs.cancel(cancelled.id)

    def full(_: str) -> bool:
        raise StorageFullError("simulated")

    looked, look = [], held[other.id].look

    def noted() -> None:
        looked.append(other.id)
        look()

    monkeypatch.setattr(held[other.id], "look", noted)
    with monkeypatch.context() as patched:
        patched.setattr(node.parts.queue, "take_out", full)
        node.turn()
    assert looked
    assert set(held) == {cancelled.id, other.id}
    with open_queue(node.parts.queue.directory) as queue:
        queue.update(cancelled.id, state=TaskState.REMOVED)
    node.turn()
    assert set(held) == {other.id}


def test_a_job_of_a_base_that_is_not_served_keeps_no_other_from_being_checked(node: Node) -> None:
    # the first in line
    other = node.own.jobs.create(NewJob(base_model="gone", request={})).id
    request = {"model": "base", "training_file": "file-rows"}
    mine = node.own.jobs.create(NewJob(base_model="base", request=request)).id
    node.turn()
    assert set(node.runner._held) == {mine}
    assert node.own.jobs.get(other).lease_owner is None
    assert [folder.path.name for folder in JobFolder.all_in(node.parts.folders)] == [mine]


def test_a_claim_that_an_interrupted_pass_left_is_dropped_while_others_train(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.had(state=TaskState.RUNNING)
    node.turn()
    left = node.had(state=TaskState.REMOVED)
    node.own.jobs.cancel(left.id)
    node.turn()
    assert (node.parts.folders / left.id).exists()
    monkeypatch.setattr(node.runner, "_reclaimed_at", float("-inf"))
    node.turn()
    assert not (node.parts.folders / left.id).exists()


def test_a_pause_that_was_never_made_for_want_of_room_resumes_nothing(node: Node) -> None:
    job = node.had(state=TaskState.RUNNING)
    folder = JobFolder(node.parts.folders, job.id)
    # killed between the two writes
    folder.note(waits_for_room=job.project_id)
    node.turn()
    assert node.runner.num_held == 1
    assert folder.notes["waits_for_room"] is None


def test_a_job_that_is_cancelled_while_the_disk_fills_up_stops_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = node.had(state=TaskState.RUNNING), node.had(state=TaskState.RUNNING)
    node.turn()
    held = node.runner._held
    assert set(held) == {first.id, second.id}
    monkeypatch.setattr(node.runner._room, "look", lambda: False)
    # behind the last look at the database
    update = Claims.update

    def cancelled_meanwhile(claims: Claims, claim: Claim, **values: Any) -> Job:
        if claim.job_id == first.id:
            node.own.jobs.cancel(first.id)
        return update(claims, claim, **values)

    monkeypatch.setattr(Claims, "update", cancelled_meanwhile)
    node.turn()
    assert node.own.jobs.get(second.id).status is JobStatus.PAUSING
    assert "waits_for_room" in held[second.id].folder.notes


def test_a_job_that_its_client_pauses_is_not_paused_for_want_of_room(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = node.had(state=TaskState.RUNNING)
    node.turn()
    monkeypatch.setattr(node.runner._room, "look", lambda: False)
    held = node.runner._held[job.id]
    # behind this turn's look at the database
    node.own.jobs.pause(job.id)
    held.pause_for_room()
    assert held.folder.notes.get("waits_for_room") is None
