"""A job's usage is written while it trains, and at every kind of end: pause, error, cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from cohort.core.events import StepDone
from cohort.runs.facts import Activity
from cohort.runs.store import RunStore
from cohort.service.jobs.held_job import HeldJob
from cohort.service.jobs.job_parts import JobParts
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.local_queue import LocalQueue
from cohort.service.jobs.publishing import RESULTS_PURPOSE
from cohort.service.jobs.runner_settings import RunnerSettings
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import LeaseLostError, QuotaExceededError
from cohort.store.jobs.project_jobs import NewJob
from cohort.store.store import ProjectStore, open_store
from cohort.store.tenants.tenants import Quotas
from cohort.task_queue.records import TaskState
from cohort.task_queue.store import open_queue
from tests.runs.small_run import write_small_run
from tests.support.service_simulation.runner_nodes import pretended_training

# of the small run: four steps of 100, one of 100 and one of 50; three evaluations of 50
TRAINED, EVALUATED = 550, 150


@dataclass
class TrainingJob:
    """A job that a node trains; the test is what trains it."""

    held: HeldJob
    run: RunStore
    own: ProjectStore
    queue: LocalQueue

    def used(self) -> dict[UsageKind, float]:
        return {row.kind: row.amount for row in self.own.usage.by_day()}

    def set_state(self, state: TaskState, *, reason: str = "") -> None:
        with open_queue(self.queue.directory) as store:
            store.update(self.held.job.id, state=state, reason=reason)

    def step(self) -> None:
        self.held.look()
        self.held.step(self.queue.tasks()[self.held.job.id])

    def train(self, *, step: int, seconds: float) -> None:
        self.run.append([StepDone(trial_id=3, step=step, loss=1.0, grad_norm=1.0, learning_rate=1e-4, num_tokens=1000)])
        self.run.add_seconds({Activity.TRAIN: seconds})


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingJob]:
    store = open_store(tmp_path / "service")
    organisation = store.tenants.add_organisation("acme", actor="test")
    own = store.project(store.tenants.add_project(organisation.id, "default", actor="test").id)
    queue = LocalQueue(tmp_path / "node" / "queue", runs=tmp_path / "node" / "runs")
    base = BaseForJobs(name="base", path="base", max_length=64)
    request = {"model": "base", "training_file": "file-rows"}
    job_id = own.jobs.create(NewJob(base_model="base", request=request, status=JobStatus.QUEUED)).id
    claimed = store.claims.claim(job_id, "node", seconds=60)
    assert claimed is not None
    with ThreadPoolExecutor(1) as threads, pretended_training():
        parts = JobParts(
            store=store,
            queue=queue,
            folders=tmp_path / "node" / "jobs",
            base_of=lambda _: base,
            organisation_of=lambda _: "acme",
            weight_of=lambda _: 1.0,
            threads=threads,
            settings=RunnerSettings(),
        )
        held = HeldJob(parts, *claimed)
        held.folder.keep_task({"model": "base"})
        held.step(None)
        _, run, _ = write_small_run(queue.run_directory(job_id))
        found = TrainingJob(held, run, own, queue)
        found.set_state(TaskState.RUNNING)
        found.step()
        yield found
    run.close()
    queue.close()
    store.close()


def test_usage_grows_while_a_job_runs_and_its_quota_holds(training: TrainingJob) -> None:
    training.held.tell_usage()
    assert training.used() == {UsageKind.TRAINED_TOKENS: TRAINED, UsageKind.EVALUATED_TOKENS: EVALUATED}
    training.train(step=1, seconds=2.5)
    training.step()
    for _ in range(2):
        training.held.tell_usage()
    assert training.used() == {
        UsageKind.TRAINED_TOKENS: TRAINED + 1000,
        UsageKind.EVALUATED_TOKENS: EVALUATED,
        UsageKind.GPU_SECONDS: 2.5,
    }
    tenants, used = training.held._parts.store.tenants, TRAINED + 1000 + EVALUATED
    tenants.set_quotas(training.own.project_id, Quotas(max_tokens_per_day=used), actor="test")
    with pytest.raises(QuotaExceededError, match=f"{used} of it are used"):
        training.own.usage.check_tokens()


def test_a_cancelled_job_is_charged_to_its_last_step(training: TrainingJob) -> None:
    training.held.tell_usage()
    training.own.jobs.cancel(training.held.job.id)
    # until its worker sees that
    training.train(step=1, seconds=4.0)
    with pytest.raises(LeaseLostError):
        training.held.tell_usage()
    training.set_state(TaskState.REMOVED)
    training.held.lost()
    assert training.held.is_over
    assert training.used()[UsageKind.TRAINED_TOKENS] == TRAINED + 1000
    assert training.used()[UsageKind.GPU_SECONDS] == 4.0


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_cancelled_job_leaves_no_results_that_its_client_never_heard_of(
    training: TrainingJob, is_stored: bool
) -> None:
    held, files = training.held, training.own.files
    file = files.add([b"a"], filename="results.csv", purpose=RESULTS_PURPOSE, max_bytes=9, asks_quota=False)
    if is_stored:
        held.folder.note(results_file=file.id)
    # killed before the job had succeeded, and cancelled then
    training.own.jobs.cancel(held.job.id)
    training.set_state(TaskState.DONE)
    # one that still publishes has its folder until it is done
    publishing = threading.Event()
    held._begin_work(publishing.wait)
    held.lost()
    assert held.folder.path.exists()
    publishing.set()
    assert held._work is not None
    held._work.result()
    held.lost()
    assert held.is_over
    assert [found.id for found in files.list().items] == ([] if is_stored else [file.id])


def fail(training: TrainingJob) -> None:
    training.set_state(TaskState.FAILED, reason="the loss is no number")
    training.step()


def pause(training: TrainingJob) -> None:
    training.own.jobs.pause(training.held.job.id)
    training.set_state(TaskState.REMOVED)
    training.step()


@pytest.mark.parametrize(
    ("end", "status"),
    [(fail, JobStatus.FAILED), (pause, JobStatus.PAUSED), (lambda training: training.held.park(), JobStatus.QUEUED)],
)
def test_a_job_that_fails_pauses_or_is_given_back_has_its_usage(
    training: TrainingJob, end: Callable[[TrainingJob], None], status: JobStatus
) -> None:
    training.train(step=1, seconds=1.5)
    end(training)
    assert training.own.jobs.get(training.held.job.id).status is status
    assert training.held.is_over
    assert training.used()[UsageKind.TRAINED_TOKENS] == TRAINED + 1000
    assert training.used()[UsageKind.GPU_SECONDS] == 1.5
