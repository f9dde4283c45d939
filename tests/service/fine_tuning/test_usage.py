"""Jobs of a service are charged while they train and however they end, for no more than the base computed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cohort.runs.directory import RunDirectory
from cohort.service.jobs.run_usage import usage_of_run
from cohort.store.enums import UsageKind
from tests.service.fine_tuning.test_journey import ended, upload
from tests.service.hosting.running_service import RunningService, chat_rows, wait_for


def used(service: RunningService, key: str) -> dict[UsageKind, float]:
    """Return what the project of a key has used, today and before."""
    store = service.opened.store
    caller = store.keys.find(key)
    assert caller is not None
    amounts: dict[UsageKind, float] = {}
    for row in store.project(caller.project.id).usage.by_day():
        amounts[row.kind] = amounts.get(row.kind, 0.0) + row.amount
    return amounts


def test_a_cancelled_job_has_its_tokens_in_usage(service: RunningService) -> None:
    key = service.tenant("cancelling")
    jobs = service.client(key).fine_tuning.jobs
    job = jobs.create(
        model="base",
        training_file=upload(service.client(key), chat_rows(48)),
        hyperparameters={"n_epochs": 500, "batch_size": 4, "learning_rate_multiplier": 5.0},
    )
    first = wait_for(lambda: used(service, key).get(UsageKind.TRAINED_TOKENS))
    wait_for(lambda: used(service, key)[UsageKind.TRAINED_TOKENS] > first)
    assert jobs.retrieve(job.id).status == "running"
    jobs.cancel(job.id)
    node = Path(service.opened.file.folder) / "nodes" / "node"
    # until then its worker trains and saves
    wait_for(lambda: not (node / "jobs" / job.id).exists())
    run = node / "runs" / job.id
    assert RunDirectory(run).lock().holder() is None
    of_run = usage_of_run(run)
    # it may not have been evaluated yet
    charged = {kind: used(service, key).get(kind, 0) for kind in of_run}
    assert charged == pytest.approx(of_run)
    assert charged[UsageKind.TRAINED_TOKENS] > first
    assert charged[UsageKind.GPU_SECONDS] > 0


def test_two_jobs_at_once_are_charged_no_more_than_the_wall_clock(service: RunningService) -> None:
    keys = [service.tenant(name) for name in ("sharing", "dividing")]
    began = time.monotonic()
    clients = [service.client(key) for key in keys]
    jobs = [
        client.fine_tuning.jobs.create(
            model="base",
            training_file=upload(client, chat_rows(48)),
            hyperparameters={"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 5.0},
        )
        for client in clients
    ]
    for client, job in zip(clients, jobs, strict=True):
        assert ended(client, job.id).status == "succeeded"
    wall = time.monotonic() - began
    seconds = [used(service, key)[UsageKind.GPU_SECONDS] for key in keys]
    assert min(seconds) > 0
    assert sum(seconds) <= wall
