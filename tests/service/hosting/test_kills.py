"""Ends at any time, by SIGKILL or in order: what was accepted goes on with the same bits, and nothing runs twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import time
from pathlib import Path

import openai
import pytest

from tests.service.fine_tuning.test_journey import ended, upload
from tests.service.hosting.running_service import chat_rows
from tests.service.hosting.service_process import ServiceProcess, forked_service
from tests.service.server_template import ServerTemplate
from tests.support.postgresql_server import PostgresServer

_EXPLICIT = {"n_epochs": 6, "batch_size": 4, "learning_rate_multiplier": 5.0}


def create(client: openai.OpenAI, rows: str) -> str:
    jobs = client.fine_tuning.jobs
    return jobs.create(model="quickstart", training_file=rows, hyperparameters=_EXPLICIT, seed=7).id  # type: ignore[arg-type]


def adapter_digest(folder: Path, job_id: str) -> str:
    # a node that lost the job may have left a run without a result
    (best,) = folder.glob(f"nodes/*/runs/{job_id}/best/adapter_model.safetensors")
    return hashlib.sha256(best.read_bytes()).hexdigest()


def kill_one(service: ServiceProcess, chance: random.Random, *, server: PostgresServer | None = None) -> None:
    """Kill the service's process, its dispatcher, a worker, or the whole database server."""
    if server is not None and chance.random() < 0.4:
        server.kill()
        time.sleep(chance.uniform(0.0, 2.0))
        server.start()
        # the service must find it again by itself
        time.sleep(chance.uniform(0.0, 2.0))
        return
    targets = [service.process.pid, *service.children()]
    target = chance.choice(targets)
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, signal.SIGKILL)
    if target == service.process.pid:
        service.process.wait()


def park(service: ServiceProcess, client: openai.OpenAI, job_id: str) -> None:
    """End the server in its orderly way while a job trains, if it still does."""
    waiting, until = ("validating_files", "queued"), time.monotonic() + 60
    while client.fine_tuning.jobs.retrieve(job_id).status in waiting and time.monotonic() < until:
        time.sleep(0.1)
    service.process.terminate()
    assert service.process.wait(90) == 0


def run_with_kills(
    folder: Path,
    template: ServerTemplate,
    *,
    num_kills: int,
    seed: int,
    most_seconds: float,
    cpu_workers: int | None = None,
    server: PostgresServer | None = None,
) -> None:
    """Kill as often as asked, each time starting under one of two names: what one node had the other takes over.

    Args:
        server: Has the database, and is killed as well; None: SQLite in the folder.
    """
    chance = random.Random(seed)
    folder.mkdir()
    database = None if server is None else server.url(server.new_database())
    with forked_service(folder, template, name="a", cpu_workers=cpu_workers, database=database) as service:
        key = service.key
        assert key
        client = service.client(key)
        rows = upload(client, chat_rows(24))
        whole = create(client, rows)
        assert ended(client, whole).status == "succeeded"
        cut = create(client, rows)
        # as soon as it was accepted, when nothing but the database knows it, or a moment later
        time.sleep(chance.choice([0.0, chance.uniform(0.0, most_seconds)]))
        service.kill()
    # an orderly end takes a start of its own
    left, is_parked = num_kills - 1, num_kills == 1
    while True:
        name = chance.choice("ab")
        with forked_service(folder, template, name=name, cpu_workers=cpu_workers, database=database) as service:
            assert not service.key, "the first key is made once"
            client = service.client(key)
            if left:
                time.sleep(chance.uniform(0.0, most_seconds))
                kill_one(service, chance, server=server)
                left -= 1
                continue
            if not is_parked:
                is_parked = True
                park(service, client, cut)
                continue
            assert client.files.retrieve(rows).status == "processed"
            job = ended(client, cut)
            assert job.status == "succeeded", job.error
            assert adapter_digest(folder, cut) == adapter_digest(folder, whole)
            models = [model.id for model in client.models.list() if model.id.startswith("ft:")]
            assert len(models) == len(set(models)) == 2
            assert len(list(client.files.list(purpose="fine-tune-results"))) == 2
            told = [event.message for event in client.fine_tuning.jobs.list_events(cut, limit=100)]
            assert told.count("The job has successfully completed") == 1
            return


def test_another_node_takes_over_what_a_killed_one_had(tmp_path: Path, server_template: ServerTemplate) -> None:
    run_with_kills(tmp_path / "service", server_template, num_kills=1, seed=9, most_seconds=4.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_ten_kills(tmp_path: Path, seed: int, server_template: ServerTemplate) -> None:
    # on the base that answers, or in workers, which are killed as well
    cpu_workers = 1 if seed % 2 else None
    run_with_kills(
        tmp_path / "service", server_template, num_kills=10, seed=seed, most_seconds=12.0, cpu_workers=cpu_workers
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_ten_kills_of_a_service_and_its_postgresql(
    tmp_path: Path, seed: int, postgresql: PostgresServer, server_template: ServerTemplate
) -> None:
    run_with_kills(tmp_path / "service", server_template, num_kills=10, seed=seed, most_seconds=12.0, server=postgresql)
