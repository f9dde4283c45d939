"""A service on a real PostgreSQL: the client's journey, two servers on one database, each killed once."""

from __future__ import annotations

import time
from pathlib import Path

import openai
import pytest

from tests.service.fine_tuning.test_journey import answer, ended, upload
from tests.service.hosting.running_service import chat_rows, running_service, wait_for
from tests.service.hosting.service_process import forked_service
from tests.service.hosting.test_kills import adapter_digest, create
from tests.service.server_template import ServerTemplate
from tests.support.postgresql_server import PostgresServer

_PROMPT = "Dora at table ten wants five jams with six teas.\n"
_SMALL = {"n_epochs": 4, "batch_size": 4, "learning_rate_multiplier": 15.0}


def has_trained(client: openai.OpenAI, job_id: str) -> bool:
    return any(event.type == "metrics" for event in client.fine_tuning.jobs.list_events(job_id, limit=5).data)


def test_the_clients_journey_while_postgresql_is_killed(
    tmp_path: Path, postgresql: PostgresServer, migrated_database: str
) -> None:
    url = postgresql.url(postgresql.new_database(template=migrated_database))
    with running_service(tmp_path / "service", url=url, share_base=True) as service:
        # requests that meet the database while it is away are sent again, as the client does by itself
        client = openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.tenant("acme"), max_retries=8)
        rows = upload(client, chat_rows(24))
        assert client.files.content(rows).read() == chat_rows(24)
        jobs = client.fine_tuning.jobs
        job_id = jobs.create(model="base", training_file=rows, hyperparameters=_SMALL, seed=1).id  # type: ignore[arg-type]
        wait_for(lambda: has_trained(client, job_id))
        postgresql.kill()
        time.sleep(0.5)
        postgresql.start()
        assert [found.id for found in jobs.list()] == [job_id]
        job = ended(client, job_id)
        assert job.status == "succeeded", job.error
        events = list(jobs.list_events(job_id, limit=100))
        told = [(event.type, event.message) for event in events if event.type == "metrics"]
        assert len(told) == len(set(told)), "each step and each evaluation once"
        model = job.fine_tuned_model or ""
        assert answer(client, model, _PROMPT) != answer(client, "base", _PROMPT)
        (checkpoint,) = jobs.checkpoints.list(job_id).data
        assert checkpoint.fine_tuned_model_checkpoint.startswith(model)
        assert client.models.delete(model).deleted
        with pytest.raises(openai.NotFoundError):
            answer(client, model, _PROMPT)
        assert client.files.delete(rows).deleted
        assert not client.files.list(purpose="fine-tune").data


def test_two_servers_on_one_postgresql_each_killed_once(
    tmp_path: Path, postgresql: PostgresServer, server_template: ServerTemplate
) -> None:
    """Each sees what the other accepted; one is killed in the middle of a job, and then the database."""
    folder, url = tmp_path / "service", postgresql.url(postgresql.new_database())
    folder.mkdir()
    with (
        forked_service(folder, server_template, name="a", database=url) as first,
        forked_service(folder, server_template, name="b", database=url) as second,
    ):
        assert first.key
        assert not second.key, "the first key is made once"
        ours, theirs = first.client(first.key), second.client(first.key)
        rows = upload(ours, chat_rows(24))
        assert theirs.files.content(rows).read() == chat_rows(24)
        whole = create(theirs, rows)
        assert ended(ours, whole).status == "succeeded"
        cut = create(ours, rows)
        wait_for(lambda: has_trained(theirs, cut))
        # the one that trains it: the other takes it over
        has_it = next(folder.glob(f"nodes/*/runs/{cut}")).parts[-3]
        lost, left = (first, second) if has_it == "a" else (second, first)
        lost.kill()
        postgresql.kill()
        postgresql.start()
        patient = openai.OpenAI(base_url=f"{left.url}/v1", api_key=first.key, max_retries=8)
        job = ended(patient, cut)
        assert job.status == "succeeded", job.error
        assert adapter_digest(folder, cut) == adapter_digest(folder, whole)
        models = [model.id for model in patient.models.list() if model.id.startswith("ft:")]
        assert len(models) == len(set(models)) == 2
        tuned = [answer(patient, model, _PROMPT) for model in models]
        assert tuned[0] == tuned[1] != answer(patient, "quickstart", _PROMPT)
