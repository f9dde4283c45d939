"""A signal that reaches a worker of a queue from outside costs its task no bit, whatever the worker is doing."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.engine.tune import tune
from cohort.machine.cluster.local import LocalPool, cpu_slots
from cohort.runs.directory import QUEUE_DATABASE
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.store import QueueStore
from tests.conftest import REPOSITORY
from tests.end_to_end.stopped.signalled_worker import VARIABLE
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, tiny_task, write_inputs

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECTIONS: dict[str, Any] = {"training": {"max_steps": 6}, "search": {"space": {"learning_rate": [1e-3, 1e-2]}}}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a worker, the function at whose ``call``-th call it gets the signal, and what becomes of the worker.

    Attributes:
        dies: Whether another worker takes its place; else it goes on itself.
        is_undisturbed: Whether it takes no notice.
    """

    name: str
    at: str
    call: int = 1
    dies: bool = False
    is_undisturbed: bool = False


PHASES = (
    Phase(name="before it began", at="", dies=True),
    Phase(name="warming up", at="cohort.task_queue.workers.worker:_warm_up", is_undisturbed=True),
    Phase(name="ready", at="cohort.task_queue.workers.worker:_Worker._tell", is_undisturbed=True),
    Phase(name="taking the task", at="cohort.task_queue.workers.worker:_Worker._carry_out", is_undisturbed=True),
    Phase(name="reading the rows", at="cohort.prepare.preparation:read_inputs_and_machine"),
    Phase(name="training", at="cohort.engine.train.step_loop:StepLoop._step", call=4),
    Phase(name="the last comparison", at="cohort.engine.train.finals:Finals.hold"),
    Phase(name="writing best", at="cohort.engine.train.finish:write_adapter_directory", is_undisturbed=True),
    Phase(name="reporting the end", at="cohort.task_queue.workers.worker:_Worker._tell", call=2, is_undisturbed=True),
    Phase(name="clearing up", at="cohort.task_queue.workers.worker:_Worker._clean_up", is_undisturbed=True),
)
SAMPLE = [
    (phase, number)
    for phase in PHASES
    for number in SIGNALS
    if (phase.name, number) in (("ready", signal.SIGINT), ("training", signal.SIGTERM))
]
REST = [(phase, number) for phase in PHASES for number in SIGNALS if (phase, number) not in SAMPLE]


def ids(values: list[tuple[Phase, signal.Signals]]) -> list[str]:
    return [f"{phase.name.replace(' ', '_')}-{number.name}" for phase, number in values]


def in_order(task: QueuedTask) -> tuple[TaskOption, ...]:
    del task
    return (TaskOption(num_gpus=1, seconds=60.0),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("worker") / "in")
    (folder / "task.yaml").write_text(json.dumps(tiny_data(**SECTIONS)))
    torch.set_num_threads(1)
    tune(tiny_task(folder, **SECTIONS), folder / "alone")
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    return outcome_of(folder / "alone")


def work_with(folder: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, sent: dict[str, Any]) -> str:
    """Work the task off with a worker that is sent a signal; return what the queue recorded."""
    monkeypatch.setenv(VARIABLE, json.dumps({**sent, "once": str(runs.parent / "sent")}))
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    add_to_queue([folder / "task.yaml"], runs)
    target = "tests.end_to_end.stopped.signalled_worker:serve"
    pool = LocalPool(cpu_slots(1, num_threads=1), target=target, log_directory=runs / "workers")
    (task,) = work_off(runs, pool, expect=in_order)
    assert task.state is TaskState.DONE, task
    with QueueStore.open(runs / QUEUE_DATABASE) as store:
        return " | ".join(decision.text for decision in store.decisions())


def check(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase, number: int) -> str:
    said = work_with(folder, tmp_path / "runs", monkeypatch, {"at": phase.at, "call": phase.call, "number": number})
    assert (tmp_path / "sent").exists(), "it was sent"
    assert ("died" in said) == phase.dies, said
    assert ("stopped from outside; it will continue" in said) == (not phase.dies and not phase.is_undisturbed), said
    return said


@pytest.mark.parametrize(("phase", "number"), SAMPLE, ids=ids(SAMPLE))
def test_a_signal_to_a_worker_costs_nothing(
    folder: Path, expected: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase, number: int
) -> None:
    check(folder, tmp_path, monkeypatch, phase, number)
    assert outcome_of(tmp_path / "runs" / "task") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "number"), REST, ids=ids(REST))
def test_soak_a_signal_to_a_worker_costs_nothing(
    folder: Path, expected: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase, number: int
) -> None:
    check(folder, tmp_path, monkeypatch, phase, number)
    assert outcome_of(tmp_path / "runs" / "task") == expected
