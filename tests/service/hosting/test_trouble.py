"""A full disk and a database that is away: requests say when to come back, jobs wait or go on, nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from cohort.service.hosting import service_app
from cohort.service.jobs import room
from cohort.store.database import Moment
from cohort.store.errors import StoreUnavailable
from cohort.store.tenants.tenants import Quotas
from tests.service.fine_tuning.test_journey import blob_of, ended, upload
from tests.service.hosting.running_service import RunningService, chat_rows, wait_for
from tests.support.paced_sweeps import paced_sweeps

_LONG = {"n_epochs": 45, "batch_size": 4, "learning_rate_multiplier": 1.0}


def running_job(client: openai.OpenAI) -> str:
    rows = upload(client, chat_rows(24))
    job = client.fine_tuning.jobs.create(model="base", training_file=rows, hyperparameters=_LONG)  # type: ignore[arg-type]
    wait_for(
        lambda: any(event.type == "metrics" for event in client.fine_tuning.jobs.list_events(job.id, limit=5).data)
    )
    return job.id


def test_a_full_disk(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    client = service.client(service.tenant("full"))
    # the job must still train when it is to be paused
    with paced_sweeps():
        job_id = running_job(client)
        monkeypatch.setattr(room, "free_bytes", lambda _: 0)
        for call in (
            lambda: upload(client, chat_rows(2)),
            lambda: client.fine_tuning.jobs.create(model="base", training_file="file-x"),
        ):
            with pytest.raises(openai.InternalServerError, match="nearly full") as refused:
                call()
            assert refused.value.status_code == 507
            assert int(refused.value.response.headers["retry-after"]) >= 1
        # what is there can still be read, and asked
        assert client.files.list().data
        assert client.completions.create(model="base", prompt="1", max_tokens=1).choices
        paused: tuple[str, ...] = ("paused",)
        wait_for(lambda: client.fine_tuning.jobs.retrieve(job_id).status in paused)
    told = [event.message for event in client.fine_tuning.jobs.list_events(job_id, limit=100)]
    assert any("disk is nearly full" in text for text in told)
    monkeypatch.undo()
    assert ended(client, job_id).status == "succeeded"


def test_a_database_that_is_away(service: RunningService) -> None:
    client = service.client(service.tenant("away"))
    job_id = running_job(client)
    database = service.opened.store.database
    before = database._faults

    def away(_: Moment) -> None:
        raise StoreUnavailable("the database is away")

    database._faults = away
    try:
        # a key that nobody has asked with lately cannot be looked up
        answer = httpx.get(f"{service.url}/v1/models", headers={"authorization": "Bearer never-seen"})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "store_unavailable"
        ready = httpx.get(f"{service.url}/ready")
        assert ready.status_code == 503
        # the process itself is well
        assert httpx.get(f"{service.url}/health").status_code == 200
    finally:
        database._faults = before
    assert httpx.get(f"{service.url}/ready").status_code == 200
    assert ended(client, job_id).status == "succeeded"


def test_a_job_ends_well_though_its_project_may_store_nothing_more(service: RunningService) -> None:
    """Its results and its model are stored, since the work is done; the jobs of others never notice."""
    rows = chat_rows(24)
    client = service.client(service.tenant("brimful", quotas=Quotas(max_stored_bytes=len(rows))))
    file = upload(client, rows)
    with pytest.raises(openai.RateLimitError, match="max_stored_bytes"):
        upload(client, rows)
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=file,
        hyperparameters={"n_epochs": 1, "batch_size": 4, "learning_rate_multiplier": 1.0},
    )
    job = ended(client, job.id)
    assert job.status == "succeeded", job.error
    assert client.files.content(job.result_files[0]).read()


def test_a_file_whose_bytes_somebody_removed_fails_its_job_alone(service: RunningService) -> None:
    key = service.tenant("robbed")
    client, lost = service.client(key), upload(service.client(key), chat_rows(12))
    service.opened.store.blobs.folder.remove(blob_of(service, lost, key=key))
    job_id = client.fine_tuning.jobs.create(model="base", training_file=lost).id
    assert ended(client, job_id).status == "failed"
    error = client.fine_tuning.jobs.retrieve(job_id).error
    assert error is not None
    assert (error.code, error.message) == ("server_error", "The server failed on this job; its log says why.")
    # an error, and not an answer that breaks off
    with pytest.raises(openai.InternalServerError, match="The server failed"):
        client.files.content(lost)
    assert service.opened.runner.is_leading


def test_a_store_that_does_not_answer_is_asked_once_for_all_who_ask_whether_it_is_ready(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, waiting, goes_on = [], [], threading.Event()

    def ask() -> int:
        return httpx.get(f"{service.url}/ready", timeout=60).status_code

    def slow() -> None:
        asked.append(1)
        goes_on.wait(60)
        raise StoreUnavailable("the bucket is away")

    class Counting:
        """asyncio, as the route uses it to wait for the one answer."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        def shield(self, answer: asyncio.Future[None]) -> asyncio.Future[None]:
            waiting.append(1)
            return asyncio.shield(answer)

    monkeypatch.setattr(service.opened.store, "check", slow)
    monkeypatch.setattr(service_app, "asyncio", Counting())
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(ask) for _ in range(8)]
        try:
            wait_for(lambda: len(waiting) == 8, seconds=30)
            # requests of all other kinds go on
            assert service.client().models.list().data
        finally:
            goes_on.set()
        assert {answer.result() for answer in answers} == {503}
    assert len(asked) == 1
    monkeypatch.undo()
    assert httpx.get(f"{service.url}/ready").status_code == 200
