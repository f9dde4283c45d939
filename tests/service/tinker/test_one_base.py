"""A server whose base answers, trains clients and works a queue off is killed, and goes on with the same bits."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.core.clock import SystemClock
from cohort.engine.tune import tune
from cohort.runs.reader import RunReader
from cohort.task_queue.operations import enqueue
from cohort.task_queue.records import TaskState
from cohort.task_queue.store import open_queue
from cohort.task_queue.submission import submission_of
from cohort.tasks.loading import task_from_mapping
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import outcome_of, tiny_data
from tests.service.server_template import ServerTemplate
from tests.service.tinker.killed_server import KilledServer
from tests.service.tinker.patient_clients import Acknowledged, outcomes

TENANTS = ("ants", "bees", "cats", "dogs")
NUM_CLIENTS = 4


def task_of(model: Path, rows: Path, place: int) -> TaskFile:
    data = tiny_data(
        dataset={"train": str(rows)},
        training={"max_steps": 12 + place, "seed": place},
        search={"space": {"learning_rate": [1e-3, 1e-2], "r": [2, 4 + place]}},
    )
    return task_from_mapping({**data, "model_name_or_path": str(model)}, base_directory=model.parent)


class Asker:
    """Asks the same again and again, also while nothing answers."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.answers: list[Any] = []
        self._thread = threading.Thread(target=self._ask)

    def ask(self) -> Any:
        body = {"model": "base", "prompt": [5, 9, 13], "max_tokens": 12, "temperature": 0.8, "seed": 3}
        response = httpx.post(f"{self._url}/v1/completions", json=body, timeout=60)
        response.raise_for_status()
        return response.json()["choices"][0]["text"]

    def __enter__(self) -> Asker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                self.answers.append(self.ask())
            except httpx.HTTPError:
                # killed: it is asked again
                time.sleep(0.02)


def steps_of(queue: Path) -> int:
    """Return how many steps of all tasks are on record."""
    total = 0
    for tenant in TENANTS:
        if (queue / tenant / "run.db").is_file():
            with RunReader.open(queue / tenant / "run.db") as reader:
                total += sum(trial.steps_done for trial in reader.trials())
    return total


def wait_until(condition: Any, *, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def are_done(queue: Path) -> bool:
    with open_queue(queue) as store:
        tasks = store.tasks()
    assert all(task.state is not TaskState.FAILED for task in tasks), [(task.name, task.reason) for task in tasks]
    return all(task.state is TaskState.DONE for task in tasks)


def kill_and_compare(model: Path, folder: Path, template: ServerTemplate, *, kills: int, steps: int) -> None:
    rows = folder / "rows.jsonl"
    texts = [{"prompt": f"{n}+{n}=", "completion": str(2 * n)} for n in range(24)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in texts))
    options: tuple[str, ...] = ("--max-trained-models", "3")
    alone = KilledServer(model, folder / "alone", options=options, template=template)
    try:
        alone.start()
        expected = outcomes(
            alone.url, folder / "alone", clients=NUM_CLIENTS, steps=steps, acknowledged=(counted := Acknowledged())
        )
        expected_answer = Asker(alone.url).ask()
    finally:
        alone.close()
    for place, tenant in enumerate(TENANTS):
        tune(task_of(model, rows, place), folder / "runs" / tenant)
    queue, acknowledged = folder / "queue", Acknowledged()
    tasks = [
        submission_of(tenant, task_of(model, rows, place), clock=SystemClock(), tenant=tenant, weight=1.0 + place)
        for place, tenant in enumerate(TENANTS)
    ]
    enqueue(tasks, queue)
    options += ("--queue", str(queue))
    server = KilledServer(model, folder / "together", options=options, template=template)

    def kill() -> None:
        for number in range(1, kills + 1):
            # by turns in the middle of the clients' calls and of the sweeps' steps
            acknowledged.wait_for(counted.count * number // (kills + 2))
            wait_until(lambda number=number: steps_of(queue) >= 10 * number)
            assert server.end() == -signal.SIGKILL
            server.start()

    try:
        server.start()
        killing = threading.Thread(target=kill)
        with Asker(server.url) as asker:
            killing.start()
            found = outcomes(
                server.url, folder / "together", clients=NUM_CLIENTS, steps=steps, acknowledged=acknowledged
            )
            killing.join()
            wait_until(lambda: are_done(queue))
        served = {each["id"] for each in httpx.get(f"{server.url}/v1/models").json()["data"]}
    finally:
        server.close()
    assert server.num_ended == kills + 1
    assert found == expected
    assert len(asker.answers) > kills
    assert set(asker.answers) == {expected_answer}
    for tenant in TENANTS:
        own, undisturbed = outcome_of(queue / tenant), outcome_of(folder / "runs" / tenant)
        assert {**own, "decisions": sorted(own["decisions"])} == {
            **undisturbed,
            "decisions": sorted(undisturbed["decisions"]),
        }
    assert served >= {"base", *TENANTS}


def test_a_base_that_is_killed_goes_on_with_all_that_used_it(
    model: Path, tmp_path: Path, server_template: ServerTemplate
) -> None:
    """Killed once; ``make soak`` kills it fifty times."""
    kill_and_compare(model, tmp_path, server_template, kills=1, steps=4)


@pytest.mark.slow
def test_soak_a_base_that_is_killed_fifty_times_goes_on_with_all_that_used_it(
    model: Path, tmp_path: Path, server_template: ServerTemplate
) -> None:
    kill_and_compare(model, tmp_path, server_template, kills=50, steps=60)
