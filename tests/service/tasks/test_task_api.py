"""Cohort's own API: a task planned, submitted, changed while it trains, reported and taken home."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.service.fine_tuning.test_journey import upload
from tests.service.hosting.running_service import RunningService, chat_rows, wait_for


@pytest.fixture(scope="module")
def http(service: RunningService) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {service.tenant('sweeper')}"}
    with httpx.Client(base_url=f"{service.url}/v1/cohort", headers=headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def rows(service: RunningService, http: httpx.Client) -> str:
    key = http.headers["authorization"].removeprefix("Bearer ")
    return upload(service.client(key), chat_rows(40))


def task(rows: str, **more: Any) -> dict[str, Any]:
    return {
        "base_model": "base",
        "dataset": {"train": rows, "validation": 0.2},
        "training": {"num_train_epochs": 2, "batch_size": 4},
        "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [4]}},
        "early_exit": "none",
        **more,
    }


def test_a_task_is_planned_before_it_is_submitted(http: httpx.Client, rows: str) -> None:
    answer = http.post("/plan", json={"task": task(rows)})
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert (plan["trials"], plan["steps_per_trial"]) == (2, [16, 16])
    assert plan["tokens"]["most"] == 2 * plan["tokens_per_trial"][1] > 1000
    assert plan["most_seconds"] > 0
    assert plan["memory_bytes"] > 1_000_000
    # files have their ids: a path would be the server's
    assert list(plan["data"]["file_hashes"]) == [rows]
    assert "/plan-" not in answer.text


def test_trials_are_listed_changed_and_exported(http: httpx.Client, rows: str) -> None:
    long = task(rows, training={"num_train_epochs": 40, "batch_size": 4})
    body = {"task": long, "metadata": {"a": "b"}, "idempotency_key": "once"}
    made = http.post("/tasks", json=body).json()
    assert made["status"] == "validating_files"
    # sent again because an answer was lost, it is the same task
    assert http.post("/tasks", json=body).json()["id"] == made["id"]
    path = f"/tasks/{made['id']}"
    assert [entry["id"] for entry in http.get("/tasks").json()["data"]] == [made["id"]]
    early = http.get(f"{path}/trials")
    assert early.status_code in (200, 409)

    def trials() -> list[dict[str, Any]]:
        found = http.get(f"{path}/trials")
        return found.json()["trials"] if found.status_code == 200 else []

    wait_for(lambda: bool(trials()))
    young = http.get(f"{path}/export")
    assert (young.status_code, young.json()["error"]["code"]) == (400, "no_adapter")
    assert re.search(r"has no (checkpoint|best adapter) yet", young.text), young.text
    assert "process" not in young.text
    assert "cohort resume" not in young.text
    wait_for(lambda: any(trial["best_value"] is not None for trial in trials()))
    added = http.post(f"{path}/trials", json={"values": {"learning_rate": 3e-3, "r": 4}}).json()
    assert added["is_taken_up"], added
    assert added["trial"] == 2
    assert http.post(f"{path}/trials/2/keep").json()["is_taken_up"]
    cloned = http.post(f"{path}/trials/1/clone", json={"values": {"learning_rate": 5e-3, "r": 4}}).json()
    assert cloned["trial"] == 3
    for number in (0, 1, 3):
        assert http.post(f"{path}/trials/{number}/stop").json()["is_taken_up"], number
    assert {trial["trial"] for trial in trials()} == {0, 1, 2, 3}
    refused = http.post(f"{path}/trials/77/stop")
    assert refused.status_code == 400
    assert "/" not in refused.json()["error"]["message"].replace(made["id"], "")
    page = http.get(f"{path}/report")
    assert page.status_code == 200
    assert "<html" in page.text
    assert "sandbox" in page.headers["content-security-policy"]
    assert http.post(f"{path}/trials/2/stop").json()["is_taken_up"]
    done = wait_for(lambda: found if (found := http.get(path).json())["status"] == "succeeded" else None)
    assert done["best"]["learning_rate"] in (1e-3, 1e-2, 3e-3, 5e-3)
    archive = zipfile.ZipFile(io.BytesIO(http.get(f"{path}/export").content))
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(archive.namelist())
    # the trial that was added has the task's own rank, and which of them wins follows from when each was stopped
    assert json.loads(archive.read("adapter_config.json"))["r"] in (4, 16)
    missing = http.get(f"{path}/export?trial=99")
    assert missing.status_code == 400
    assert "choose one of them (?trial=N, or --trial N)" in missing.text


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"base_model": "gpt"}, "task.model_name_or_path"),
        ({"dataset": {"train": "/etc/passwd"}}, "task.dataset.train"),
        ({"dataset": {"train": ["file-none"]}}, "task.dataset.train"),
        ({"dataset": {}}, "task.dataset"),
        ({"report_to": "wandb"}, "task.report_to"),
        ({"num_gpus": 8}, "task.num_gpus"),
        ({"rewards": ["os:system"]}, "task.rewards"),
        ({"objective": "my_losses:focal"}, "task.objective"),
        ({"evaluation": {"metric": "/tmp/x.py:f"}}, "task.evaluation.metric"),
        ({"objective": {"type": "dpo", "reference_adapter": "/x"}}, "task.objective.reference_adapter"),
        ({"training": {"learning_rat": 1}}, "training.learning_rat"),
    ],
)
def test_tasks_that_are_refused(http: httpx.Client, rows: str, changed: dict[str, Any], param: str) -> None:
    answer = http.post("/tasks", json={"task": task(rows) | changed})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


def test_the_schema_is_published(http: httpx.Client) -> None:
    assert "dataset" in http.get("/schema").json()["properties"]
