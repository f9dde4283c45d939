"""A queue over a Ray cluster of two hosts, of which one vanishes: noticed in time, nothing lost, nothing run twice."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError
from cohort.engine.tune import tune
from cohort.runs.directory import QUEUE_DATABASE
from cohort.runs.reader import RunReader
from cohort.task_queue.records import RunStretch, TaskState
from cohort.task_queue.store import QueueStore
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, tiny_task, write_inputs
from tests.support.hosts import Host, two_hosts, why_no_hosts

REASON = "Ray is not installed" if importlib.util.find_spec("ray") is None else why_no_hosts()
pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=REASON or "Ray and hosts are here"),
    # a cluster takes half a minute to start where two cores do all of it
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

# what a user waits for at most before a host that is gone is missed
MOST_SECONDS = 30.0
SECTIONS: dict[str, Any] = {
    "early_exit": "none",
    "evaluation": {"finalists": 0, "max_examples": 2},
    "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [2]}},
}
# steps of each trial: the long ones outlast a worker that is cut off, on a fast machine as well
TASKS = {"first": 2500, "second": 2500, "third": 300}
# what the how-to tells a user to set
CHECKS = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "3",
}
PORT = "6379"


def sections(num_steps: int) -> dict[str, Any]:
    return {**SECTIONS, "training": {"max_steps": num_steps, "batch_size": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("ray-hosts") / "in")
    for name, steps in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps(tiny_data(**sections(steps))))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Outcome]:
    torch.set_num_threads(1)
    for name, steps in TASKS.items():
        tune(tiny_task(folder, **sections(steps)), folder / "alone" / name)
    return {name: outcome_of(folder / "alone" / name) for name in TASKS}


@dataclass(kw_only=True)
class RayHosts:
    """A head on the first host, a node on the second, each with room for one worker; and a queue's directory."""

    hosts: tuple[Host, Host]
    folder: Path
    runs: Path
    sockets: Path

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    def start_ray(self, place: int) -> None:
        host = self.hosts[place]
        joins: list[str | Path] = ["--address", self.address]
        if place == 0:
            joins = ["--head", "--port", PORT, "--include-dashboard", "false", "--temp-dir", self.sockets]
        host.start(
            *("-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", "--node-ip-address", host.address),
            *("--object-store-memory", "80000000", "--disable-usage-stats"),
            *joins,
            log=self.folder / f"ray-{place}.log",
            **CHECKS,
        )

    def run(self, folder: Path) -> subprocess.Popen[bytes]:
        files = [folder / f"{name}.yaml" for name in TASKS]
        words: list[str | Path] = ["run", *files, "--ray", self.address, "--workers", "2", "-o", self.runs]
        return self.hosts[0].start("-m", "cohort", *words, log=self.folder / "run.log")

    def said(self) -> str:
        return (self.folder / "run.log").read_text()

    def what_happened(self) -> tuple[str, tuple[RunStretch, ...]]:
        with QueueStore.open(self.runs / QUEUE_DATABASE) as store:
            return " ".join(decision.text for decision in store.decisions()), store.stretches()

    def states(self) -> dict[str, TaskState]:
        with QueueStore.open(self.runs / QUEUE_DATABASE) as store:
            return {task.name: task.state for task in store.tasks()}

    def process_of(self, task: str) -> int | None:
        """Return the process that holds the task's run directory."""
        try:
            return int(json.loads((self.runs / task / ".lock").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None

    def tasks_on(self, host: Host) -> dict[str, int]:
        processes = host.processes()
        held = {name: self.process_of(name) for name in TASKS}
        return {name: process for name, process in held.items() if process in processes and process is not None}


@pytest.fixture
def ray_hosts(tmp_path: Path) -> Iterator[RayHosts]:
    # paths of sockets have 107 characters at most, which the folder of a test uses up
    with tempfile.TemporaryDirectory(prefix="cohort-ray-") as sockets, two_hosts(tmp_path) as hosts:
        made = RayHosts(hosts=hosts, folder=tmp_path, runs=tmp_path / "runs", sockets=Path(sockets))
        made.start_ray(0)
        wait_for(lambda: "Ray runtime started" in (tmp_path / "ray-0.log").read_text())
        made.start_ray(1)
        wait_for(lambda: "Ray runtime started" in (tmp_path / "ray-1.log").read_text())
        yield made


def wait_for(condition: Callable[[], bool], *, seconds: float = 180.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it never happened"
        time.sleep(0.1)
    return time.monotonic() - began


def num_steps(run: Path) -> int:
    try:
        with RunReader.open(run / "run.db") as reader:
            return len(reader.log.steps())
    except CohortError:
        return 0


def assert_as_alone(ray_hosts: RayHosts, expected: dict[str, Outcome]) -> None:
    assert ray_hosts.states() == dict.fromkeys(TASKS, TaskState.DONE), ray_hosts.said()
    for name, steps in TASKS.items():
        assert outcome_of(ray_hosts.runs / name) == expected[name]
        # each step of each trial once
        assert num_steps(ray_hosts.runs / name) == 2 * steps


def test_both_hosts_take_tasks_and_the_adapters_are_those_of_one(
    folder: Path, ray_hosts: RayHosts, expected: dict[str, Outcome]
) -> None:
    first, second = ray_hosts.hosts
    queue = ray_hosts.run(folder)
    wait_for(lambda: bool(ray_hosts.tasks_on(first) and ray_hosts.tasks_on(second)) or queue.poll() is not None)
    assert queue.poll() is None, ray_hosts.said()
    assert queue.wait(300) == 0, ray_hosts.said()
    assert_as_alone(ray_hosts, expected)
    _, stretches = ray_hosts.what_happened()
    assert sorted(stretch.task for stretch in stretches) == sorted(TASKS)
    assert len({stretch.slot_id for stretch in stretches}) == 2


def test_a_host_that_vanishes_is_missed_and_its_task_goes_on_elsewhere(
    folder: Path, ray_hosts: RayHosts, expected: dict[str, Outcome]
) -> None:
    second = ray_hosts.hosts[1]
    queue = ray_hosts.run(folder)

    def is_training() -> bool:
        return any(num_steps(ray_hosts.runs / task) >= 20 for task in ray_hosts.tasks_on(second))

    wait_for(lambda: is_training() or queue.poll() is not None)
    assert queue.poll() is None, ray_hosts.said()
    ((task, process),) = ray_hosts.tasks_on(second).items()
    second.vanish()
    seconds = wait_for(lambda: "slot lost: node" in ray_hosts.what_happened()[0] or queue.poll() is not None)
    # the machine may be busy with other tests: what counts is that no one waits for ever
    assert seconds < MOST_SECONDS + 10, f"noticed after {seconds:.0f} s"
    # what was cut off has ended by itself, or it would train beside the one that goes on
    assert process not in second.processes()
    # as an operator would: what Ray left there ends, and the host joins again
    second.come_back()
    second.end()
    ray_hosts.start_ray(1)
    assert queue.wait(400) == 0, ray_hosts.said()
    print(f"noticed after {seconds:.1f} s")
    assert_as_alone(ray_hosts, expected)
    said, stretches = ray_hosts.what_happened()
    assert "slots joined" in said
    outcomes = {name: [stretch.outcome for stretch in stretches if stretch.task == name] for name in TASKS}
    assert outcomes == {name: ["its slot was lost", "done"] if name == task else ["done"] for name in TASKS}
