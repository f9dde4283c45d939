"""The unmodified ``openai`` client from its first file to a tuned model that answers, and back to nothing."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import openai
import pytest
from openai.types.fine_tuning import FineTuningJob

from tests.service.hosting.running_service import RunningService, chat_rows, pair_rows, wait_for
from tests.support.paced_sweeps import paced_sweeps

# a status of the API's documentation that the client's types lack
_PAUSED: tuple[str, ...] = ("paused",)
_ENDED = ("succeeded", "failed", "cancelled")


def ended(client: openai.OpenAI, job_id: str) -> FineTuningJob:
    job: FineTuningJob = wait_for(
        lambda: found if (found := client.fine_tuning.jobs.retrieve(job_id)).status in _ENDED else None
    )
    return job


def upload(client: openai.OpenAI, content: bytes, *, name: str = "rows.jsonl") -> str:
    return client.files.create(file=(name, content), purpose="fine-tune").id


def blob_of(service: RunningService, file_id: str, *, key: str) -> str:
    """Return the name of the blob that holds a file of the key's project."""
    store = service.opened.store
    caller = store.keys.find(key)
    assert caller is not None
    blob = store.project(caller.project.id).files.get(file_id).blob
    assert blob is not None
    return blob


def answer(client: openai.OpenAI, model: str, prompt: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    chat = client.chat.completions.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=24,
    )
    return chat.choices[0].message.content or ""


def common_words(text: str, wanted: str) -> int:
    return len(set(text.split()) & set(wanted.split()))


def test_files(service: RunningService) -> None:
    client = service.client(service.tenant("files"))
    content = chat_rows(8)
    first = client.files.create(
        file=("rows.jsonl", content), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (first.bytes, first.filename, first.status) == (len(content), "rows.jsonl", "processed")
    assert first.expires_at == first.created_at + 3600
    others = [upload(client, content, name=f"{number}.jsonl") for number in range(3)]
    # pages of two, the newest first
    assert [file.id for file in client.files.list(limit=2)] == [*reversed(others), first.id]
    assert [file.id for file in client.files.list(order="asc", limit=3).data] == [first.id, *others[:2]]
    assert client.files.list(purpose="batch").data == []
    assert client.files.content(first.id).read() == content
    assert client.files.delete(first.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(first.id)


def test_auto_is_searched_and_the_winner_answers_better_than_its_base(service: RunningService) -> None:
    client = service.client(service.tenant("searching"))
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=upload(client, chat_rows(40)),
        validation_file=upload(client, chat_rows(16, name="validation")),
        suffix="cafe",
        seed=3,
        metadata={"team": "blue"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1, "batch_size": 4}}},
    )
    assert job.status == "validating_files"
    assert job.hyperparameters.learning_rate_multiplier == "auto"

    # events come while it runs, the newest first
    def told() -> list[str]:
        return [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=50).data]

    wait_for(lambda: any("validation loss" in text for text in told()))
    assert client.fine_tuning.jobs.retrieve(job.id).status in ("running", "succeeded")
    assert told()[-1] == "Created fine-tuning job for base"
    job = ended(client, job.id)
    assert job.status == "succeeded", job.error
    # six multipliers were tried, and the answer shows which won
    assert job.hyperparameters.learning_rate_multiplier in (5.0, 15.0, 50.0)
    assert (job.hyperparameters.batch_size, job.hyperparameters.n_epochs) == (4, 1)
    assert any(text.startswith("Trial 5") for text in told())
    assert (job.trained_tokens or 0) > 1000
    model = job.fine_tuned_model or ""
    assert model.startswith("ft:base:searching:cafe:")
    prompt, wanted = "Dora at table ten wants five jams with six teas.\n", "Table 10: 5 jam + 6 tea = 11"
    tuned, plain = answer(client, model, prompt), answer(client, "base", prompt)
    assert common_words(tuned, wanted) > common_words(plain, wanted), (tuned, plain)

    (results,) = job.result_files
    rows = list(csv.DictReader(io.StringIO(client.files.content(results).read().decode())))
    assert [int(row["step"]) for row in rows] == list(range(1, 11))
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"])
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert checkpoint.fine_tuned_model_checkpoint == f"{model}:ckpt-step-{checkpoint.step_number}"
    assert checkpoint.metrics.valid_loss
    assert answer(client, checkpoint.fine_tuned_model_checkpoint, prompt) == tuned

    assert [found.id for found in client.fine_tuning.jobs.list(metadata={"team": "blue"})] == [job.id]
    assert not client.fine_tuning.jobs.list(metadata={"team": "red"}).data
    assert [found.id for found in client.models.list()] == ["base", model]
    assert client.models.retrieve(model).id == model
    assert client.models.delete(model).deleted
    with pytest.raises(openai.NotFoundError):
        answer(client, model, prompt)
    # a checkpoint is a model of its own
    assert answer(client, checkpoint.fine_tuned_model_checkpoint, prompt) == tuned
    assert client.models.delete(checkpoint.fine_tuned_model_checkpoint).deleted
    with pytest.raises(openai.NotFoundError):
        answer(client, checkpoint.fine_tuned_model_checkpoint, prompt)


def test_pause_resume_and_cancel(service: RunningService) -> None:
    client = service.client(service.tenant("pausing"))
    rows = upload(client, chat_rows(48))
    explicit = {"n_epochs": 14, "batch_size": 4, "learning_rate_multiplier": 5.0}
    jobs = client.fine_tuning.jobs
    first = jobs.create(model="base", training_file=rows, hyperparameters=explicit)  # type: ignore[arg-type]
    other = jobs.create(
        model="base",
        training_file=rows,
        hyperparameters={**explicit, "n_epochs": 500},  # type: ignore[arg-type]
    )
    # it must still train when it is paused
    with paced_sweeps():
        wait_for(lambda: any(event.type == "metrics" for event in jobs.list_events(first.id, limit=5).data))
        assert jobs.pause(first.id).status in ("pausing", "paused")
        wait_for(lambda: jobs.retrieve(first.id).status in _PAUSED)
    assert jobs.cancel(other.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="is cancelled"):
        jobs.cancel(other.id)
    assert jobs.resume(first.id).status == "queued"
    done = ended(client, first.id)
    assert done.status == "succeeded", done.error
    assert done.hyperparameters.model_dump(exclude_none=True) == explicit
    steps = [event.data["step"] for event in jobs.list_events(first.id, limit=100) if event.type == "metrics"]  # type: ignore[index]
    # it went on where it was: every step once, evaluations with their own
    assert max(steps) == 14 * 11
    assert jobs.retrieve(other.id).status == "cancelled"
    # of jobs that have ended the server keeps no rows
    folders = Path(service.opened.file.folder) / "nodes" / "node" / "jobs"
    wait_for(lambda: not (folders / first.id).exists() and not (folders / other.id).exists())


def test_dpo(service: RunningService) -> None:
    client = service.client(service.tenant("preferring"))
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=upload(client, pair_rows(24)),
        method={
            "type": "dpo",
            "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 1, "batch_size": 4, "learning_rate_multiplier": 4}},
        },
        extra_body={"cohort": {"lora": {"r": 4}}},
    )
    job = ended(client, job.id)
    assert job.status == "succeeded", job.error
    assert job.method is not None
    assert job.method.dpo is not None
    assert job.method.dpo.hyperparameters is not None
    assert job.method.dpo.hyperparameters.beta == 0.2
    assert job.fine_tuned_model
