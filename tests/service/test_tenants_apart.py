"""A hostile tenant: nothing of another one is there by id, name, list, message, metric or the time of an answer."""

from __future__ import annotations

import httpx
import openai
import pytest

from cohort.store.enums import KeyScope
from cohort.store.tenants.tenants import Quotas
from tests.service.fine_tuning.test_journey import ended, upload
from tests.service.hosting.running_service import RunningService, chat_rows, wait_for


def call(service: RunningService, method: str, path: str, key: str, **options: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.request(method, f"{service.url}{path}", headers=headers, timeout=60, **options)  # type: ignore[arg-type]


def test_every_id_of_another_tenant_is_unknown(service: RunningService) -> None:
    owner_key, thief_key = service.tenant("owner"), service.tenant("thief")
    owner, thief = service.client(owner_key), service.client(thief_key)
    file_id = upload(owner, chat_rows(24))
    explicit = {"n_epochs": 1, "batch_size": 8, "learning_rate_multiplier": 1.0}
    job = owner.fine_tuning.jobs.create(model="base", training_file=file_id, hyperparameters=explicit)  # type: ignore[arg-type]
    job = ended(owner, job.id)
    assert job.status == "succeeded", job.error
    (checkpoint,) = owner.fine_tuning.jobs.checkpoints.list(job.id).data
    model, later = job.fine_tuned_model or "", checkpoint.fine_tuned_model_checkpoint
    event = owner.fine_tuning.jobs.list_events(job.id).data[0].id
    # served to its owner, so that it is loaded
    assert owner.completions.create(model=model, prompt="1", max_tokens=1).choices
    chat = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
    calls: list[tuple[str, str, dict[str, object] | None]] = [
        ("GET", "/v1/files/{}", None),
        ("GET", "/v1/files/{}/content", None),
        ("DELETE", "/v1/files/{}", None),
        ("GET", "/v1/files?after={}", None),
        *(("GET", f"/v1/fine_tuning/jobs/{{}}{end}", None) for end in ("", "/events", "/checkpoints")),
        *(("POST", f"/v1/fine_tuning/jobs/{{}}/{verb}", None) for verb in ("cancel", "pause", "resume")),
        ("GET", "/v1/fine_tuning/jobs?after={}", None),
        ("GET", "/v1/models/{}", None),
        ("DELETE", "/v1/models/{}", None),
    ]
    for stolen in (file_id, job.id, model, later, event, checkpoint.id):
        for method, path, body in calls:
            theirs = call(service, method, path.format(stolen), thief_key, json=body)
            assert theirs.status_code in (400, 404), (method, path, stolen, theirs.text)
            # an id that nobody has reads the same
            invented = call(service, method, path.format("x" * len(stolen)), thief_key, json=body)
            assert theirs.status_code == invented.status_code
            assert theirs.text.replace(stolen, "x" * len(stolen)) == invented.text
    for name in (model, later):
        for path, more in (("completions", {"prompt": "1", "max_tokens": 1}), ("chat/completions", chat)):
            answer = call(service, "POST", f"/v1/{path}", thief_key, json={"model": name, **more})
            assert answer.status_code == 404
            assert "quickstart" not in answer.text
    with pytest.raises(openai.BadRequestError, match="does not exist"):
        thief.fine_tuning.jobs.create(model="base", training_file=file_id)
    assert not thief.files.list().data
    assert not thief.fine_tuning.jobs.list().data
    assert [found.id for found in thief.models.list()] == ["base"]
    # all of it is still the owner's
    assert owner.files.retrieve(file_id).id == file_id
    assert owner.completions.create(model=later, prompt="1", max_tokens=1).choices


def test_a_prompt_of_one_tenant_makes_no_answer_to_another_faster(service: RunningService) -> None:
    blocks = next(iter(service.opened.served.bases.values())).thread.engine.blocks
    prompt = "Table seven wants four pretzels and three buns. " * 12
    first, second = (service.client(service.tenant(name)) for name in ("first", "second"))

    def ask(client: openai.OpenAI) -> int:
        before = blocks.num_hits
        client.completions.create(model="base", prompt=prompt, max_tokens=1)
        return blocks.num_hits - before

    assert ask(first) == 0
    assert ask(first) > 0
    assert ask(second) == 0
    assert ask(second) > 0


def test_keys_open_what_their_scopes_say(service: RunningService) -> None:
    asks = service.tenant("inquirer", scopes=frozenset({KeyScope.INFERENCE}))
    tunes = service.tenant("tunes", scopes=frozenset({KeyScope.FINE_TUNING}))
    watches = service.tenant("watches", scopes=frozenset({KeyScope.METRICS}))
    body = {"model": "base", "prompt": "1", "max_tokens": 1}
    for key, path, status in (
        (asks, "/v1/files", 403),
        (tunes, "/v1/files", 200),
        (asks, "/v1/models", 200),
        (asks, "/v1/fine_tuning/jobs", 403),
        (asks, "/v1/cohort/tasks", 403),
        (asks, "/metrics", 403),
        ("", "/v1/models", 401),
        ("wrong", "/v1/models", 401),
        (service.key, "/metrics", 200),
        (watches, "/metrics", 200),
        (watches, "/v1/models", 403),
        (watches, "/v1/cohort/tasks", 403),
        (watches, "/dashboard/api/runs", 401),
        (watches, "/dashboard/api/service", 401),
    ):
        assert call(service, "GET", path, key).status_code == status, path
    assert call(service, "POST", "/v1/completions", tunes, json=body).status_code == 403
    assert call(service, "POST", "/v1/completions", asks, json=body).status_code == 200
    numbers = call(service, "GET", "/metrics", service.key).text
    assert "cohort_service:http_requests_total" in numbers
    assert "inquirer" not in numbers
    assert "proj_" not in numbers


def test_quotas_are_429_with_the_time_to_come_back(service: RunningService) -> None:
    key = service.tenant("small", quotas=Quotas(max_open_jobs=1, max_stored_bytes=20_000))
    client = service.client(key)
    rows = upload(client, chat_rows(40))
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=rows,
        hyperparameters={"n_epochs": 900, "batch_size": 4, "learning_rate_multiplier": 1.0},
    )
    with pytest.raises(openai.RateLimitError, match="max_open_jobs") as refused:
        client.fine_tuning.jobs.create(model="base", training_file=rows)
    assert refused.value.code == "insufficient_quota"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    client.fine_tuning.jobs.cancel(job.id)
    with pytest.raises(openai.RateLimitError, match="max_stored_bytes"):
        upload(client, chat_rows(200))
    hurried = service.tenant("hurried", quotas=Quotas(max_requests_per_minute=5))
    statuses = [call(service, "GET", "/v1/models", hurried).status_code for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2
    spent = service.client(service.tenant("spent", quotas=Quotas(max_tokens_per_day=4)))
    assert spent.completions.create(model="base", prompt="one two three four five", max_tokens=1).choices

    def refusal() -> openai.RateLimitError | None:
        try:
            spent.completions.create(model="base", prompt="one two three", max_tokens=1)
        except openai.RateLimitError as error:
            return error
        return None

    # what was used is written within a second, and looked at again within two
    assert "max_tokens_per_day" in str(wait_for(refusal))
