"""Sweeps on the model that a server serves: requests and tasks have the bits that each has alone."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.service.opening import open_served
from cohort.service.settings import ServedSettings, ServerLimits
from cohort.serving.adapter_pool_settings import AdapterPoolSettings
from cohort.task_queue.operations import enqueue
from cohort.task_queue.records import TaskState
from cohort.task_queue.store import open_queue
from cohort.task_queue.submission import submission_of
from cohort.tasks.loading import TaskFile
from tests.end_to_end.tiny_tasks import outcome_of, tiny_task
from tests.service.running_server import RunningServer, running, write_served

TASKS: dict[str, dict[str, Any]] = {
    "ants": {"training": {"max_steps": 4}},
    "bees": {
        "training": {"max_steps": 5, "seed": 7, "batch_size": 3},
        "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [3, 8]}},
    },
    "cats": {"training": {"max_steps": 4, "seed": 3}},
    "dogs": {"search": {"space": {"learning_rate": [3e-3], "r": [2, 5, 16]}}},
}
PROMPTS = [f"{number}+{number}=" for number in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    write_served(folder)
    rows = [{"prompt": f"{n}*2=", "completion": str(2 * n)} for n in range(24)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def settings_of(folder: Path, queue: Path | None = None, **keys: Any) -> ServedSettings:
    return ServedSettings(
        model=str(folder / "model"),
        adapters=(str(folder / "adapters"),),
        names=("base",),
        gpus=0,
        queue=queue,
        pool=AdapterPoolSettings(max_loras=4, max_lora_rank=16),
        **keys,
    )


def task_of(folder: Path, name: str) -> TaskFile:
    return tiny_task(folder, **TASKS[name])


def asked(server: RunningServer) -> list[str]:
    """Return the answers to all prompts by all models, asked at the same time."""
    pairs = [(model, prompt) for model in ("base", "a0", "a1", "a2") for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as threads:
        return [*threads.map(lambda pair: server.complete(*pair, temperature=0.7, seed=5), pairs)]


def wait_until_done(queue: Path, names: set[str]) -> None:
    for _ in range(2400):
        with open_queue(queue) as store:
            states = {task.name: (task.state, task.reason) for task in store.tasks()}
        if all(states[name][0] is TaskState.DONE for name in names):
            return
        assert all(state is not TaskState.FAILED for state, _ in states.values()), states
        threading.Event().wait(0.05)
    raise AssertionError(states)


def test_requests_and_the_sweeps_of_four_tenants_are_as_each_would_be_alone(folder: Path, tmp_path: Path) -> None:
    with running(settings_of(folder)) as server:
        expected = asked(server)
    for name in TASKS:
        tune(task_of(folder, name), tmp_path / name)
    queue = tmp_path / "queue"
    answers: list[list[str]] = []
    with running(settings_of(folder, queue)) as server:
        for weight, name in enumerate(TASKS, start=1):
            task = submission_of(name, task_of(folder, name), clock=SystemClock(), tenant=name, weight=weight)
            enqueue([task], queue)
        while not answers or set(TASKS) - {path.parent.parent.name for path in queue.glob("*/best/README.md")}:
            answers.append(asked(server))
        wait_until_done(queue, set(TASKS))
        served = {model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]}
        tuned = server.complete("ants", "3*2=")
        server.assert_nothing_is_held()
    assert len(answers) > 1
    assert all(found == expected for found in answers)
    for name in TASKS:
        found, alone = outcome_of(queue / name), outcome_of(tmp_path / name)
        assert {**found, "decisions": sorted(found["decisions"])} == {**alone, "decisions": sorted(alone["decisions"])}
    # what is done is served at once, and by the next server
    assert served == {"base", "a0", "a1", "a2", *TASKS}
    with running(settings_of(folder, queue)) as server:
        assert server.complete("ants", "3*2=") == tuned


def test_what_does_not_go_together_is_refused_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    limits = ServerLimits()
    with pytest.raises(InputError, match="--tensor-parallel-size 2"):
        open_served(settings_of(folder, tmp_path / "queue", tensor_parallel_size=2), limits)
    with pytest.raises(InputError, match=r"10\.0 TiB \(keys and values\)"):
        open_served(settings_of(folder, tmp_path / "queue", cache_bytes=10 << 40), limits)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="which is a file"):
        open_served(settings_of(folder, tmp_path / "file"), limits)


def test_the_memory_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    opened = open_served(settings_of(folder, tmp_path / "queue"), ServerLimits())
    opened.thread.start()
    opened.thread.close(drain_seconds=0)
    (line,) = [note for note in opened.notes if note.startswith("memory:")]
    assert all(word in line for word in ("base model", "passes", "served adapters", "keys and values", "sweeps"))
    assert any("sweeps give way to requests after 250 ms" in note for note in opened.notes)
