"""Ctrl-C and SIGTERM do the same in each phase of a run: what was reached is saved, one sentence says how to go on."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.reader import RunReader
from tests.end_to_end.stopped.forked_runs import ForkServer
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, write_inputs

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECTIONS: dict[str, Any] = {"training": {"max_steps": 6}, "search": {"space": {"learning_rate": [1e-3, 1e-2, 3e-2]}}}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a run: the function at whose ``call``-th call it is stopped."""

    name: str
    at: str
    call: int = 1
    # what the run directory holds then: nothing, its task, or a run
    holds: str = "run"


PHASES = (
    Phase(name="reading the task", at="cohort.prepare.fitting_task:load_fitting_task", holds="nothing"),
    Phase(name="reading the rows", at="cohort.prepare.preparation:read_inputs_and_machine", holds="nothing"),
    Phase(name="loading the model", at="cohort.prepare.preparation:place_model", holds="nothing"),
    Phase(name="sizing the memory", at="cohort.prepare.base_model.placed_model:PlacedModel.sizes", holds="nothing"),
    Phase(name="allocating the bank", at="cohort.prepare.preparation:Preparation.build_executor", holds="task"),
    Phase(name="beginning the record", at="cohort.engine.run_start:save_checkpoint"),
    Phase(name="measuring the base model", at="cohort.engine.train.task_run:TaskRun.measure_base"),
    Phase(name="the first step", at="cohort.engine.train.step_loop:StepLoop._step"),
    Phase(name="training", at="cohort.engine.train.step_loop:StepLoop._step", call=4),
    Phase(name="evaluating", at="cohort.engine.train.evaluation:RunEvaluator.__call__", call=2),
    Phase(name="between two steps", at="cohort.engine.train.task_run:TaskRun.between_steps", call=3),
    Phase(name="writing a checkpoint", at="cohort.engine.train.state_saving:StateSaving.begin"),
    Phase(name="completing a checkpoint", at="cohort.engine.train.state_saving:StateSaving.complete"),
    Phase(name="the last comparison", at="cohort.engine.train.finals:Finals.hold"),
    Phase(name="measuring a finalist", at="cohort.engine.train.finals:Finals._measure"),
    Phase(name="measuring on the test rows", at="cohort.engine.train.finals:Finals._measure", call=2),
    Phase(name="writing best", at="cohort.engine.train.finish:write_adapter_directory"),
    Phase(name="writing the table", at="cohort.engine.train.finish:write_results_csv"),
    Phase(name="writing the report", at="cohort.engine.train.finish:write_report"),
    Phase(name="putting checkpoints away", at="cohort.engine.train.finish:keep_last_checkpoint"),
    Phase(name="printing the results", at="cohort.cli.tables.run_results:print_results"),
)
by_name = {phase.name: phase for phase in PHASES}
FIRST_STEP, LOADING, TRAINING = (by_name[name] for name in ("the first step", "loading the model", "training"))
LAST_COMPARISON, REPORT = by_name["the last comparison"], by_name["writing the report"]
# one signal in each phase by default, in turn; both in the phases that ended without a word once
SAMPLE = [
    (phase, number)
    for index, phase in enumerate(PHASES)
    for number in (SIGNALS if phase in (LOADING, LAST_COMPARISON) else (SIGNALS[(index + 1) % 2],))
]
REST = [(phase, number) for phase in PHASES for number in SIGNALS if (phase, number) not in SAMPLE]


def ids(values: list[tuple[Phase, signal.Signals]]) -> list[str]:
    return [f"{phase.name.replace(' ', '_')}-{number.name}" for phase, number in values]


class Stopping:
    """A task file in a folder, and what it comes to undisturbed."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        data = tiny_data(**SECTIONS)
        data["dataset"]["test"] = "test.jsonl"
        (folder / "task.yaml").write_text(json.dumps(data))
        (folder / "test.jsonl").write_text((folder / "train.jsonl").read_text())
        assert self.call("tune", "task.yaml", "-o", "undisturbed") == 0, self.said
        self.expected: Outcome = outcome_of(folder / "undisturbed")

    @property
    def said(self) -> str:
        return (self._folder / "stderr").read_text()

    def call(self, *arguments: str, **sent: Any) -> int:
        command = {"act": "command", "folder": str(self._folder), "arguments": list(arguments)}
        return self._server.run({**command, "signal": sent} if sent else command)

    def stop(self, run: Path, phase: Phase, number: signal.Signals) -> None:
        """Stop a tune, or a resume where ``run`` holds a run, and check what it prints and leaves."""
        again = (run / "task.yaml").exists()
        arguments = ["resume", str(run)] if again else ["tune", "task.yaml", "-o", str(run)]
        status = self.call(*arguments, at=phase.at, call=phase.call, number=number)
        if again and status == 0:
            # what is done already has no such phase
            return
        assert status == 128 + number, self.said
        by = "Ctrl-C" if number is signal.SIGINT else "SIGTERM"
        assert self.said.count("interrupted by") == 1, self.said
        assert f"interrupted by {by}" in self.said
        assert "Traceback" not in self.said
        if phase.holds == "nothing" and not again:
            assert "nothing was to be saved. Start again with the same command" in self.said
            assert not run.exists()
            return
        assert ("the state is saved" in self.said) == (run / "run.db").exists()
        assert f"\n    cohort resume {run}\n" in self.said
        assert [path for path in run.rglob("*") if "partial" in path.name] == []
        if (run / "run.db").exists():
            with RunReader.open(run / "run.db") as reader:
                saved = [checkpoint.position for checkpoint in reader.checkpoints()]
                done_again = reader.log.last_position() != saved[-1] if saved else reader.log.steps()
                assert not done_again

    def go_on(self, run: Path) -> None:
        """Do what the message said, and check that nothing is lost."""
        if not run.exists():
            # the same command in the same folder: what is expected came of that
            return
        assert self.call("resume", str(run)) == 0, self.said
        found = outcome_of(run)
        for name, value in self.expected.items():
            assert found[name] == value, name


@pytest.fixture(scope="module")
def stopping(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Stopping:
    return Stopping(fork_server, write_inputs(tmp_path_factory.mktemp("stopping")))


@pytest.mark.parametrize(("phase", "number"), SAMPLE, ids=ids(SAMPLE))
def test_a_signal_stops_a_run_in_each_phase(
    stopping: Stopping, tmp_path: Path, phase: Phase, number: signal.Signals
) -> None:
    stopping.stop(tmp_path / "run", phase, number)
    stopping.go_on(tmp_path / "run")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_at_once(stopping: Stopping, tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    sent = {"at": TRAINING.at, "call": TRAINING.call, "again_at": "cohort.engine.train.state_saving:StateSaving.save"}
    assert stopping.call("tune", "task.yaml", "-o", str(run), **sent, number=number) == 128 + number
    assert "interrupted at once by another" in stopping.said
    assert (
        f"what came after the last checkpoint is done again. To continue:\n\n    cohort resume {run}" in stopping.said
    )
    assert "Traceback" not in stopping.said
    stopping.go_on(run)


def test_a_resume_is_stopped_as_the_run_was(stopping: Stopping, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for index, phase in enumerate((FIRST_STEP, LOADING, TRAINING, LAST_COMPARISON, REPORT)):
        stopping.stop(run, phase, SIGNALS[index % 2])
    stopping.go_on(run)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "number"), REST, ids=ids(REST))
def test_soak_the_other_signal_stops_a_run_in_each_phase(
    stopping: Stopping, tmp_path: Path, phase: Phase, number: signal.Signals
) -> None:
    stopping.stop(tmp_path / "run", phase, number)
    stopping.go_on(tmp_path / "run")
