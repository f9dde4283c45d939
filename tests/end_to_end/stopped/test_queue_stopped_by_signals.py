"""Ctrl-C and SIGTERM do the same in each phase of ``cohort run``: tasks are saved, one sentence says how to go on."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, write_inputs

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# so long that it trains for some turns of the dispatcher
SECTIONS: dict[str, Any] = {"training": {"max_steps": 160}, "search": {"space": {"learning_rate": [1e-3, 1e-2]}}}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a queue: the function at whose ``call``-th call it is stopped, once ``after`` exists in its directory.

    Attributes:
        holds: What the queue's directory holds then: nothing, a queue, or one whose tasks are all done.
        to_workers: Whether the worker is sent the signal as well, as a scheduler does that ends a whole job.
    """

    name: str
    at: str
    call: int = 1
    after: str | None = None
    holds: str = "queue"
    to_workers: bool = False
    options: tuple[str, ...] = ()


TURN = "cohort.task_queue.dispatcher:Dispatcher._turn"
RUN, BEST = "task/run.db", "task/best/adapter_config.json"
PHASES = (
    Phase(name="reading the task file", at="cohort.task_queue.operations:read_submissions", holds="nothing"),
    Phase(name="predicting the task", at="cohort.task_queue.expected_time:ExpectedTime.__call__", holds="nothing"),
    Phase(name="adding the task", at="cohort.task_queue.store:QueueStore.add", holds="nothing"),
    Phase(name="taking the queue", at="cohort.task_queue.dispatcher:Dispatcher.run"),
    Phase(name="a worker starting", at=TURN, call=2),
    Phase(name="a worker starting, to all", at=TURN, call=2, to_workers=True),
    Phase(name="sending the task", at="cohort.task_queue.workers.worker_orders:WorkerOrders._begin"),
    Phase(name="training", at=TURN, call=3, after=RUN),
    Phase(name="training, to all", at=TURN, call=3, after=RUN, to_workers=True),
    Phase(name="the last task ending", at="cohort.task_queue.task_states:TaskStates.done", holds="results"),
    Phase(name="waiting for tasks", at=TURN, call=5, after=BEST, holds="results", options=("--keep-open",)),
    Phase(name="ending the workers", at="cohort.machine.cluster.local:LocalPool.close", holds="results"),
    Phase(name="showing the queue", at="cohort.task_queue.page:write_queue_page", holds="results"),
)
by_name = {phase.name: phase for phase in PHASES}
SAMPLE = [
    (by_name["adding the task"], signal.SIGTERM),
    (by_name["training, to all"], signal.SIGINT),
]
REST = [(phase, number) for phase in PHASES for number in SIGNALS if (phase, number) not in SAMPLE]


def ids(values: list[tuple[Phase, signal.Signals]]) -> list[str]:
    return [f"{phase.name.replace(' ', '_').replace(',', '')}-{number.name}" for phase, number in values]


class StoppingQueue:
    """A task file in a folder, and what the task comes to undisturbed."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        (folder / "task.yaml").write_text(json.dumps(tiny_data(**SECTIONS)))
        assert self.call("tune", "task.yaml", "-o", "alone") == 0, self.said
        self.expected: Outcome = outcome_of(folder / "alone")

    @property
    def said(self) -> str:
        return (self._folder / "stderr").read_text()

    def call(self, *arguments: str, **sent: Any) -> int:
        command = {"act": "command", "folder": str(self._folder), "arguments": list(arguments)}
        return self._server.run({**command, "signal": sent} if sent else command)

    def begin(self, runs: Path, *options: str, **sent: Any) -> int:
        return self.call("run", "task.yaml", "--workers", "1", "-o", str(runs), *options, **sent)

    def stop(self, runs: Path, phase: Phase, number: signal.Signals) -> None:
        """Stop the queue, and check what it prints and leaves."""
        after = None if phase.after is None else str(runs / phase.after)
        sent = {"at": phase.at, "call": phase.call, "after": after, "to_workers": phase.to_workers}
        status = self.begin(runs, *phase.options, **sent, number=number)
        assert "Traceback" not in self.said
        if phase.holds == "results" and status == 0:
            # it had nothing left to do but to show them
            assert (runs / "report.html").exists()
            return
        assert status == 128 + number, self.said
        by = "Ctrl-C" if number is signal.SIGINT else "SIGTERM"
        assert self.said.count("interrupted by") == 1, self.said
        assert f"interrupted by {by}" in self.said
        if phase.holds == "nothing":
            assert "nothing was to be saved. Start again with the same command" in self.said
            return
        assert f"the state is saved. To continue:\n\n    cohort resume {runs}\n" in self.said
        assert [path for path in runs.rglob("*") if "partial" in path.name] == []

    def go_on(self, runs: Path, phase: Phase) -> None:
        """Do what the message said, and check that nothing is lost."""
        status = self.begin(runs) if phase.holds == "nothing" else self.call("resume", str(runs))
        assert status == 0, self.said
        found = outcome_of(runs / "task")
        for name, value in self.expected.items():
            assert found[name] == value, name


@pytest.fixture(scope="module")
def stopping(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> StoppingQueue:
    return StoppingQueue(fork_server, write_inputs(tmp_path_factory.mktemp("stopping")))


def test_signals_stop_a_queue_before_it_holds_a_task_and_while_its_worker_trains(
    stopping: StoppingQueue, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    # a worker takes seconds to start, so only these phases by default, one after the other
    for phase, number in SAMPLE:
        stopping.stop(runs, phase, number)
    stopping.go_on(runs, SAMPLE[-1][0])


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "number"), REST, ids=ids(REST))
def test_soak_a_signal_stops_a_queue_in_each_phase(
    stopping: StoppingQueue, tmp_path: Path, phase: Phase, number: signal.Signals
) -> None:
    stopping.stop(tmp_path / "runs", phase, number)
    stopping.go_on(tmp_path / "runs", phase)
