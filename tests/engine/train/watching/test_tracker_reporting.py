"""``report_to`` in a run: TensorBoard for real, through interruption and resume; failures cost a note."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.core.events import Evaluated, StepDone
from cohort.engine.train import task_run as task_run_module
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.train.watching.tracker_reporting import TrackerReporter
from cohort.engine.tune import RunOptions, resume, tune
from cohort.integrations.trackers import Trackers
from cohort.prepare.inputs import read_inputs
from cohort.runs.facts import Activity
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.tuning.decisions import Decision
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

# protobuf and the standard library deprecate what tensorboard still uses
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tracked"))


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def update(self, progress: RunProgress) -> None:
        pass

    def note(self, text: str) -> None:
        self.lines.append(text)


def scalars(run: Path, trial_id: int, name: str) -> list[tuple[int, Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard" / f"trial-{trial_id:04d}"))
    events.Reload()
    return [(scalar.step, scalar.value) for scalar in events.Scalars(name)]


def assert_tensorboard_holds_the_log(run: Path) -> None:
    with RunReader.open(run / "run.db") as reader:
        trials, steps, evaluations = reader.trials(), reader.log.steps(), reader.log.evaluations()
    for trial in trials:
        logged = [(step.step, pytest.approx(step.loss)) for step in steps if step.trial_id == trial.trial_id]
        assert scalars(run, trial.trial_id, "train/loss") == logged
        measured = [
            (found.step, pytest.approx(found.validation_loss))
            for found in evaluations
            if found.trial_id == trial.trial_id
        ]
        assert scalars(run, trial.trial_id, "eval/loss") == measured


def test_tensorboard_gets_every_number_of_a_run(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
    run = tmp_path / "run"
    tune(tiny_task(folder, report_to="tensorboard"), run)
    with RunReader.open(run / "run.db") as reader:
        finals = reader.facts().finals
    assert finals is not None
    winner = finals.winner
    assert winner.trial_id is not None
    ((_, value),) = scalars(run, winner.trial_id, "finals/loss")
    assert value == pytest.approx(winner.values["loss"].value)
    assert_tensorboard_holds_the_log(run)
    assert len(list((run / "tensorboard").iterdir())) == 6


def test_tensorboard_goes_on_after_an_interruption(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
    run, ticks = tmp_path / "run", 0
    took = task_run_module.TaskRun._took

    def interrupt_at_the_third(self: Any, events: Any, decisions: Any) -> None:
        nonlocal ticks
        took(self, events, decisions)
        ticks += 1
        if ticks == 3:
            # unlike a stop at a step boundary this saves nothing: the last steps are trained and sent again
            raise KeyboardInterrupt

    monkeypatch.setattr(task_run_module.TaskRun, "_took", interrupt_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, report_to=["tensorboard"]), run, options=RunOptions(checkpoint_seconds=3600))
    with RunReader.open(run / "run.db") as reader:
        run_id = reader.facts().run_id
    resume(run)
    assert_tensorboard_holds_the_log(run)
    with RunReader.open(run / "run.db") as reader:
        assert reader.facts().run_id == run_id


def test_times_are_recorded_and_fit_into_the_run(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, evaluation={"metric": "exact_match", "max_new_tokens": 3}), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts = read_results(reader).facts
    spent = [facts.seconds[activity] for activity in (Activity.TRAIN, Activity.EVALUATE, Activity.GENERATE)]
    assert min(spent) > 0
    assert sum(spent) <= facts.run_seconds


def test_a_missing_package_is_named_with_the_other_problems(folder: Path) -> None:
    task = tiny_task(folder, report_to=["trackio"], lora={"target_modules": ["q_prj"]})
    with pytest.raises(InputError) as caught:
        read_inputs(task)
    assert "q_prj" in str(caught.value)
    assert "pip install trackio" in str(caught.value)
    assert "report_to" in str(caught.value)


class _Fails:
    """A tracker whose server is gone from the first step on."""

    def start_trial(self, trial_id: int, *, parameters: Mapping[str, Any]) -> None:
        pass

    def log_step(self, event: StepDone) -> None:
        raise ConnectionError("no route")

    def log_evaluation(self, event: Evaluated) -> None:
        raise AssertionError("it was dropped")

    def log_decision(self, decision: Decision) -> None:
        raise AssertionError("it was dropped")

    def log_comparison(self, trial_id: int, numbers: Mapping[str, float], *, step: int) -> None:
        raise AssertionError("it was dropped")

    def close(self) -> None:
        raise AssertionError("it was dropped")


def test_a_tracker_that_fails_is_noted_once_and_recorded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_failing(names: object, *, settings: object) -> Trackers:
        return Trackers({"mlflow": _Fails()})

    monkeypatch.setattr(task_run_module, "open_trackers", open_failing)
    watcher = Notes()
    tune(tiny_task(folder, training={"max_steps": 3}), tmp_path / "run", watcher=watcher)
    assert len([line for line in watcher.lines if "mlflow failed" in line and "no route" in line]) == 1
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        assert reader.facts().tracker_failures == {"mlflow": "ConnectionError: no route"}


def test_reporter_is_silent_without_trackers() -> None:
    lines: list[str] = []
    reporter = TrackerReporter(Trackers({}), trials=(), note=lines.append)
    reporter.took([StepDone(trial_id=0, step=1, loss=1.0, grad_norm=1.0, learning_rate=1e-4, num_tokens=3)], [])
    reporter.close()
    assert (lines, dict(reporter.failures)) == ([], {})
