"""A trial that was stopped over HTTP trains on when it is asked to."""

from __future__ import annotations

from typing import Any

import httpx

from tests.service.fine_tuning.test_journey import upload
from tests.service.hosting.running_service import RunningService, chat_rows, wait_for


def test_a_stopped_trial_is_resumed(service: RunningService) -> None:
    key = service.tenant("resuming")
    rows = upload(service.client(key), chat_rows(24))
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"{service.url}/v1/cohort", headers=headers, timeout=120) as http:
        task = {
            "base_model": "base",
            "dataset": {"train": rows, "validation": 0.2},
            "training": {"num_train_epochs": 400, "batch_size": 4},
            "search": {"space": {"learning_rate": [1e-3, 3e-3], "r": [4]}},
            "early_exit": "none",
        }
        path = f"/tasks/{http.post('/tasks', json={'task': task}).json()['id']}"

        def trial(number: int) -> dict[str, Any]:
            answer = http.get(f"{path}/trials")
            found = answer.json()["trials"] if answer.status_code == 200 else []
            return next((each for each in found if each["trial"] == number), {})

        wait_for(lambda: trial(0).get("best_value"))
        assert http.post(f"{path}/trials/0/stop").json()["is_taken_up"]
        stopped = wait_for(lambda: found if (found := trial(0))["status"] == "stopped" else None)
        assert http.post(f"{path}/trials/0/resume").json()["is_taken_up"]
        going_on = wait_for(lambda: found if (found := trial(0))["steps"] > stopped["steps"] else None)
        assert going_on["status"] in ("running", "parked", "waiting")
        # one that trains has nothing to resume
        refused = http.post(f"{path}/trials/0/resume")
        assert refused.status_code == 400 or not refused.json()["is_taken_up"], refused.text
        assert http.post(f"{path}/cancel").status_code == 200
