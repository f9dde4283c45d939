"""Functions of the caller see a run and may stop its trials; what they decide is recorded and replayed."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

import cohort
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from tests.end_to_end.tiny_tasks import write_inputs
from tests.tuning.loss_curves import BY_RANK

KEYS: dict[str, Any] = {
    "training": {"max_steps": 6, "batch_size": 2},
    "lora": {"target_modules": ["q_proj"], "lora_alpha": "2r"},
    # small enough to be dear: evaluated as often as a longer run
    "evaluation": {"max_examples": 4, "max_cost_fraction": 100.0},
    "early_exit": "none",
    "num_gpus": 0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def task_of(folder: Path, **keys: Any) -> cohort.Task:
    dataset = {"train": folder / "train.jsonl", "validation": 0.25, "max_length": 64}
    keys = {"search_space": {"learning_rate": [1e-3, 1e-2, 2e-2]}, **KEYS, **keys}
    return cohort.Task(model=folder / "model", dataset=dataset, **keys)


def decisions_of(run: Path) -> list[tuple[int, int, str, str]]:
    """Return (trial, step, reason, message without its time) of what users decided."""
    with RunReader.open(run / "run.db") as reader:
        found = [entry.decision for entry in reader.log.decisions() if entry.decision.rule == "user"]
    return [(d.trial_id, d.step, str(d.reason), re.sub(r", [\d-]+ [\d:.]+ UTC$", "", d.message)) for d in found]


def adapters_of(run: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in run.glob("trials/*/adapter_model.safetensors")}


def test_callbacks_are_told_of_everything_and_stop_one_trial(folder: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    evaluations: list[tuple[int, int, bool]] = []
    ends: list[tuple[int, int, str, str]] = []

    def on_step(report: cohort.StepReport) -> None:
        steps.append((report.trial_id, report.step))
        assert report.planned_steps == 6
        assert report.loss > 0
        if (report.trial_id, report.step) == (1, 3):
            report.stop_trial("enough")
            report.stop_trial("twice is harmless")

    def on_evaluation(report: cohort.EvaluationReport) -> None:
        evaluations.append((report.trial_id, report.step, report.is_best))

    def on_trial_end(report: cohort.TrialEndReport) -> None:
        ends.append((report.trial_id, report.step, report.status, report.reason))
        assert report.validation_loss > 0
        assert report.parameters["learning_rate"] == [1e-3, 1e-2, 2e-2][report.trial_id]

    result = cohort.run(
        task_of(folder),
        run_directory=tmp_path / "run",
        on_step=on_step,
        on_evaluation=on_evaluation,
        on_trial_end=on_trial_end,
    )
    assert sorted(steps) == [(trial, step) for trial in range(3) for step in range(1, 7) if trial != 1 or step <= 3]
    assert {trial for trial, _, _ in evaluations} == {0, 1, 2}
    assert any(is_best for _, _, is_best in evaluations)
    assert sorted(ends) == [
        (0, 6, "completed", "completed"),
        (1, 3, "stopped", "stopped by user"),
        (2, 6, "completed", "completed"),
    ]
    assert decisions_of(tmp_path / "run") == [(1, 3, "stopped by user", "on_step: enough")]
    # no other trial's bits change
    plain = cohort.run(task_of(folder), run_directory=tmp_path / "plain")
    stopped, whole = adapters_of(result.run_directory), adapters_of(plain.run_directory)
    assert stopped["0000"] == whole["0000"]
    assert stopped["0002"] == whole["0002"]


def test_a_decision_is_replayed_after_an_interruption(folder: Path, tmp_path: Path) -> None:
    def on_step(report: cohort.StepReport) -> None:
        if (report.trial_id, report.step) == (1, 2):
            report.stop_trial()

    whole = cohort.run(task_of(folder), run_directory=tmp_path / "whole", on_step=on_step)
    calls = 0

    def stopping(report: cohort.StepReport) -> None:
        nonlocal calls
        on_step(report)
        calls += 1
        if calls == 8:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        cohort.run(task_of(folder), run_directory=tmp_path / "run", on_step=stopping)
    assert decisions_of(tmp_path / "run") == [(1, 2, "stopped by user", "on_step")]
    # without the callback: the decision is on record
    resumed = cohort.resume(tmp_path / "run")
    assert adapters_of(resumed.run_directory) == adapters_of(whole.run_directory)
    assert decisions_of(tmp_path / "run") == decisions_of(tmp_path / "whole")


def test_a_callback_ends_the_run_and_its_search(folder: Path, tmp_path: Path) -> None:
    task = task_of(
        folder,
        search={"sampler": "random", "trials": 8, "first_trials": 2},
        search_space={"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}},
    )

    def on_evaluation(report: cohort.EvaluationReport) -> None:
        report.stop_run(f"loss {report.validation_loss:.0f} will do")

    result = cohort.run(task, run_directory=tmp_path / "run", on_evaluation=on_evaluation)
    assert (result.state, len(result.trials)) == ("done", 2)
    assert result.adapter_directory.is_dir()
    assert {row["reason"] for row in result.trials} == {"stopped by user"}
    assert len(cohort.resume(tmp_path / "run").trials) == 2


def test_the_end_of_a_trial_that_a_callback_stopped_may_add_another_one(folder: Path, tmp_path: Path) -> None:
    ended: list[int] = []

    def on_evaluation(report: cohort.EvaluationReport) -> None:
        if report.trial_id == 0:
            report.stop_trial("enough")

    def on_trial_end(report: cohort.TrialEndReport) -> None:
        ended.append(report.trial_id)
        if report.trial_id == 0:
            report.clone_trial({"learning_rate": 5e-3})

    task = task_of(folder, search_space={"learning_rate": [1e-3]})
    result = cohort.run(task, run_directory=tmp_path / "run", on_evaluation=on_evaluation, on_trial_end=on_trial_end)
    assert ended == [0, 1]
    assert [row["status"] for row in sorted(result.trials, key=lambda row: row["trial"])] == ["stopped", "completed"]


def test_a_search_that_a_callback_ended_in_steps_that_a_kill_lost_goes_on(folder: Path, tmp_path: Path) -> None:
    task = task_of(
        folder,
        search={"sampler": "random", "trials": 4, "first_trials": 2},
        search_space={"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}},
    )

    def interrupt(calls: int) -> Callable[[Any], None]:
        left = iter(range(calls, 0, -1))
        return lambda _: signal.raise_signal(signal.SIGINT) if next(left, 0) == 1 else None

    with pytest.raises(KeyboardInterrupt):
        cohort.run(task, run_directory=tmp_path / "run", on_step=interrupt(2))
    with contextlib.closing(RunStore.resume(tmp_path / "run" / "run.db")) as store:
        # after the checkpoint, as of a process that was killed after it had ended the search
        store.set_facts(search_ended="stopped by on_step", search_ended_at=store.position + 1)
    with pytest.raises(KeyboardInterrupt):
        cohort.resume(tmp_path / "run", on_step=interrupt(2))
    # the log is now longer than it was when the lost steps ended the search
    result = cohort.resume(tmp_path / "run")
    assert len(result.trials) == 4


def _fails(report: Any) -> None:
    raise ValueError("not today")


@pytest.mark.parametrize(
    ("name", "callback", "told"),
    [
        ("on_step", _fails, r"on_step failed at trial 0, step 1: ValueError: not today; the run is saved"),
        ("on_trial_end", _fails, r"on_trial_end failed at trial \d, step 6: ValueError"),
        ("on_step", lambda report: "stop", r"on_step returned 'stop' at trial 0, step 1, .*call report\.stop_trial"),
    ],
)
def test_a_callback_that_fails_is_named_and_the_run_saved(
    folder: Path, tmp_path: Path, name: str, callback: Callable[[Any], object], told: str
) -> None:
    task = task_of(folder, search_space={"learning_rate": [1e-3]})
    with pytest.raises(cohort.CallbackError, match=told):
        cohort.run(task, run_directory=tmp_path / "run", **{name: callback})  # type: ignore[call-overload]
    assert cohort.load(tmp_path / "run").state == "stopped"
    result = cohort.run(task, run_directory=tmp_path / "run")
    assert (result.state, result.trials[0]["steps"]) == ("done", 6)


def test_what_cannot_be_called_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(cohort.InputError, match="on_step: found 3; allowed: a function of one report"):
        cohort.run(task_of(folder), run_directory=tmp_path / "run", on_step=3)  # type: ignore[call-overload]
    assert not (tmp_path / "run").exists()


def test_an_optuna_study_is_written_and_continued(folder: Path, tmp_path: Path) -> None:
    study = optuna.create_study()
    space = {"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}}
    search = {"sampler": "tpe", "trials": 2}
    first = cohort.run(task_of(folder, search=search, search_space=space), run_directory=tmp_path / "one", study=study)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert study.best_value == pytest.approx(min(row["eval_loss"] for row in first.trials))
    second = task_of(folder, search=search, search_space=space, training={**KEYS["training"], "seed": 1})
    cohort.run(second, run_directory=tmp_path / "two", study=study)
    assert len(study.trials) == 4
    earlier = cohort.load_task(tmp_path / "two" / "task.yaml").search.earlier_results
    assert {result.value for result in earlier} == {row["eval_loss"] for row in first.trials}
    # the cell again: nothing is added twice, and the run keeps the results that it began with
    cohort.run(second, run_directory=tmp_path / "two", study=study)
    assert len(study.trials) == 4


def test_callbacks_keep_resume_clone_and_add_trials(folder: Path, tmp_path: Path) -> None:
    def on_evaluation(report: cohort.EvaluationReport) -> None:
        # weaker than the others, and stopped at the selection unless it is kept
        if (report.trial_id, report.step) == (0, 1):
            report.keep_trial("a baseline")
        if (report.trial_id, report.step) == (2, 6):
            report.clone_trial({"learning_rate": 5e-3}, warm_start=True, why="once more, slower")
            report.add_trial({"r": 4})
            report.add_trial({"r": -4})

    def on_trial_end(report: cohort.TrialEndReport) -> None:
        if report.reason == "underperforming" and report.trial_id == 1:
            report.resume_trial("let it end")

    warmup = {"warmup_fraction": 0.17, "select_fraction": 0.34, **BY_RANK}
    result = cohort.run(
        task_of(folder, early_exit=warmup),
        run_directory=tmp_path / "run",
        on_evaluation=on_evaluation,
        on_trial_end=on_trial_end,
    )
    decided = {(trial, reason): message for trial, _, reason, message in decisions_of(tmp_path / "run")}
    assert decided == {
        (0, "kept by user"): "on_evaluation: a baseline",
        (1, "resumed by user"): "on_trial_end: let it end",
        (3, "added by user"): "on_evaluation: once more, slower",
        (4, "added by user"): "on_evaluation",
    }
    rows = {row["trial"]: row for row in result.trials}
    assert [rows[trial]["status"] for trial in (0, 1, 2)] == ["completed"] * 3
    assert (rows[3]["parameters"]["learning_rate"], rows[4]["parameters"]["r"]) == (5e-3, 4)
