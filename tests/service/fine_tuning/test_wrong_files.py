"""Files that cannot be trained on: refused where they are sent, or named with their line by the job that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.service.fine_tuning.test_journey import ended, upload
from tests.service.hosting.running_service import RunningService, chat_rows, pair_rows

_GOOD = chat_rows(4)


@pytest.fixture(scope="module")
def client(service: RunningService) -> openai.OpenAI:
    return service.client(service.tenant("careless"))


@pytest.mark.parametrize(
    ("form", "param", "words"),
    [
        ({"file": ("rows.jsonl", b""), "purpose": "fine-tune"}, "file", "empty"),
        ({"file": ("rows.csv", b"a,b"), "purpose": "fine-tune"}, "file", "Must be .jsonl"),
        ({"file": ("rows.jsonl", _GOOD), "purpose": "other"}, "purpose", "write one of"),
        ({"file": ("r" * 300 + ".jsonl", _GOOD), "purpose": "fine-tune"}, "file", "printable"),
        (
            {
                "file": ("rows.jsonl", _GOOD),
                "purpose": "fine-tune",
                "expires_after": {"anchor": "created_at", "seconds": 1},
            },
            "expires_after",
            "3600",
        ),
    ],
)
def test_forms_that_are_refused(client: openai.OpenAI, form: dict[str, object], param: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        client.files.create(**form)  # type: ignore[arg-type]
    assert refused.value.param == param


@pytest.mark.parametrize(("form", "found"), [({"file": "rows.jsonl"}, "file is a text"), ({}, "no field file")])
def test_a_form_without_a_file_is_told_how_curl_sends_one(
    service: RunningService, client: openai.OpenAI, form: dict[str, str], found: str
) -> None:
    # a field without a name of a file, as curl sends `-F file=rows.jsonl`
    fields = {name: (None, value) for name, value in {"purpose": "fine-tune", **form}.items()}
    headers = {"authorization": f"Bearer {client.api_key}"}
    answer = httpx.post(f"{service.url}/v1/files", files=fields, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_file")
    assert found in answer.text
    assert "-F file=@rows.jsonl" in answer.text


def test_a_file_that_is_too_large_is_refused_while_it_streams(service: RunningService, client: openai.OpenAI) -> None:
    row = _GOOD.splitlines(keepends=True)[0]
    with pytest.raises(openai.APIStatusError, match="at most 1 MiB") as refused:
        client.files.create(file=("rows.jsonl", row * (1 + (3 << 19) // len(row))), purpose="fine-tune")
    assert refused.value.status_code == 413

    def endless() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
        while True:
            yield row * 100

    headers = {"authorization": f"Bearer {client.api_key}", "content-type": "multipart/form-data; boundary=x"}
    try:
        answer = httpx.post(f"{service.url}/v1/files", content=endless(), headers=headers, timeout=30)
    except httpx.WriteError:
        # the server has hung up before it was sent to its end, which there is none
        return
    assert answer.status_code == 413


@pytest.mark.parametrize("body", [b"", b"--x", b"--x\r\n\r\nabc", b"--y\r\n", b"\x00" * 50])
def test_broken_forms(service: RunningService, client: openai.OpenAI, body: bytes) -> None:
    headers = {"authorization": f"Bearer {client.api_key}", "content-type": "multipart/form-data; boundary=x"}
    answer = httpx.post(f"{service.url}/v1/files", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_GOOD + b'{"messages": [{"role": "robot", "content": "Q"}]}\n', ", line 5: found the role 'robot'"),
        (_GOOD + '{"messages": [{"role": "user", "content": "\u00e4"}]}\n'.encode("latin-1"), "line 5: found the byte"),
        (_GOOD.decode().encode("utf-16"), "UTF-16"),
        (b"\n\n", "no rows"),
        (pair_rows(2), "rows in the preference format"),
        (json.dumps([1, 2]).encode(), "one JSON array"),
    ],
)
def test_rows_that_a_job_names(client: openai.OpenAI, content: bytes, words: str) -> None:
    file_id = upload(client, content)
    job = ended(client, client.fine_tuning.jobs.create(model="base", training_file=file_id).id)
    assert job.status == "failed"
    assert job.error is not None
    assert (job.error.code, job.error.param) == ("invalid_training_file", "training_file")
    assert words in job.error.message
    # the client's id, and no path of the server
    assert file_id in job.error.message
    assert "/" not in job.error.message.replace("input/output", "").partition("such as")[0]
    (event,) = client.fine_tuning.jobs.list_events(job.id, limit=1).data
    assert event.level == "error"


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"model": "gpt-5"}, 404, "model"),
        ({"training_file": "file-nothing"}, 400, "training_file"),
        ({"hyperparameters": {"n_epochs": 0}}, 400, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"batch_size": "many"}}, 400, "hyperparameters.batch_size"),
        ({"suffix": "a/b"}, 400, "suffix"),
        ({"method": {"type": "reinforcement"}}, 400, "method.type"),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata.k"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, 400, "integrations"),
        ({"cohort": {"metric": "os:system"}}, 400, "cohort.evaluation.metric"),
        ({"cohort": {"lora": {"adapter_name_or_path": "/etc"}}}, 400, "cohort.lora.adapter_name_or_path"),
        ({"cohort": {"nonsense": 1}}, 400, "cohort.nonsense"),
    ],
)
def test_jobs_that_are_refused(
    service: RunningService, client: openai.OpenAI, given: dict[str, object], status: int, param: str
) -> None:
    body = {"model": "base", "training_file": upload(client, _GOOD), **given}
    headers = {"authorization": f"Bearer {client.api_key}"}
    answer = httpx.post(f"{service.url}/v1/fine_tuning/jobs", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


def test_values_that_only_the_whole_task_shows_to_be_wrong(client: openai.OpenAI) -> None:
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=upload(client, chat_rows(24)),
        extra_body={"cohort": {"search_space": {"learning_rat": [1e-3]}}},
    )
    job = ended(client, job.id)
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.code == "invalid_hyperparameters"
    assert "learning_rate" in job.error.message
