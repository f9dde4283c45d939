"""What the terminal says of a run: every searched hyperparameter is named, also one that came out the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.cli.tables.run_results import print_results, print_status
from cohort.core.events import Evaluated, StepDone
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import TaskFacts
from cohort.runs.records import JsonValue, TrialRecord
from cohort.runs.status import read_status
from cohort.runs.store import RunStore
from tests.runs.synthetic_run import SyntheticRun, new_best, write_synthetic_run

SPACE: dict[str, JsonValue] = {
    "learning_rate": {"min": 1e-5, "max": 1e-3, "log": True},
    "batch_size": [2, 4],
    "lr_scheduler_type": ["linear", "cosine"],
    "warmup_ratio": [0.0, 0.1],
}
WITH = "with   learning_rate 0.0001, batch_size 4, lr_scheduler_type cosine, warmup_ratio 0.1"


def _run(folder: Path, *, rates: tuple[float, ...], task: TaskFacts) -> Path:
    directory = RunDirectory.create(folder / "run")
    store = RunStore.create(directory.database)
    store.set_facts(task=task)
    same: dict[str, JsonValue] = {"batch_size": 4, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "r": 8}
    store.add_trials(
        [
            TrialRecord(trial_id=n, parameters={"learning_rate": rate, **same}, planned_steps=1, seed=0)
            for n, rate in enumerate(rates)
        ]
    )
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(len(rates))]
    store.append(evaluated, map(new_best, evaluated))
    store.close()
    return directory.root


def _lines(shown: str) -> list[str]:
    return [" ".join(line.split()) for line in shown.splitlines()]


@pytest.mark.parametrize("rates", [(1e-4, 3e-4, 5e-4), (1e-4,)])
def test_every_searched_hyperparameter_is_named(
    rates: tuple[float, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_results(_run(tmp_path, rates=rates, task=TaskFacts(document={"search": {"space": SPACE}})), as_json=False)
    assert " ".join(WITH.split()) in _lines(capsys.readouterr().out)


def test_columns_that_are_left_out_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _run(tmp_path, rates=(1e-4, 3e-4), task=TaskFacts(document={"search": {"space": SPACE}}))
    same = "batch_size 4, lr_scheduler_type cosine, warmup_ratio 0.1, r 8 in every trial"
    print_results(run, as_json=False)
    print_status(read_status(RunDirectory.open(run)), run_directory=run, as_json=False)
    lines = _lines(capsys.readouterr().out)
    assert lines.count(f"same {same}") == 2
    heads = [line for line in lines if line.startswith("place trial")]
    assert heads == ["place trial learning_rate validation loss steps status"] * 2


def test_a_run_without_a_recorded_task_is_told_by_what_varies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_results(_run(tmp_path, rates=(1e-4, 3e-4), task=TaskFacts()), as_json=False)
    assert "with learning_rate 0.0001" in _lines(capsys.readouterr().out)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_keeps_the_trial_and_says_what_it_leaves_out(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    write_synthetic_run(directory.database, SyntheticRun(trials=60, steps=40))
    monkeypatch.setenv("COLUMNS", str(width))
    print_results(directory.root, as_json=False)
    table, _, facts = capsys.readouterr().out.partition("\nsame ")
    lines = table.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    # the trial's number is the second column where ranks have room
    place = 1 if "place" in table else 0
    assert sorted(int(row[place]) for row in rows) == list(range(60))
    assert "…" not in table
    assert ("hidden   place" in facts) == (width == 60)


def test_a_cost_above_all_trials_in_full_says_what_is_above_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    store = RunStore.create(directory.database)
    store.set_facts(task=TaskFacts())
    store.add_trials([TrialRecord(trial_id=0, parameters={"r": 8}, planned_steps=1, seed=0, planned_tokens=400)])
    step = StepDone(trial_id=0, step=1, loss=1.0, grad_norm=1.0, learning_rate=1e-4, num_tokens=400)
    store.append([step, Evaluated(trial_id=0, step=1, validation_loss=1.0, num_tokens=111)])
    store.close()
    print_results(directory.root, as_json=False)
    cost = "cost 113.9 % of training the one trial in full, evaluations included (13.9 %), as much as 1.1 full runs"
    assert cost in _lines(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("later", "said"), [(0, ""), (1, " (1 later step is trained again)"), (2, " (2 later steps are trained again)")]
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_killed_run_says_how_many_steps_are_trained_again(
    first: int, later: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    store = RunStore.create(directory.database)
    store.add_trials([TrialRecord(trial_id=0, parameters={"r": 8}, planned_steps=4, seed=0)])
    steps = [
        StepDone(trial_id=0, step=step, loss=1.0, grad_norm=1.0, learning_rate=1e-4, num_tokens=4)
        for step in range(1, first + later + 1)
    ]
    store.append(steps[:first])
    store.record_checkpoint("checkpoint-1", checksum="aa")
    store.append(steps[first:])
    store.close()
    print_status(read_status(directory), run_directory=directory.root, as_json=False)
    shown = capsys.readouterr().out
    where = "the last checkpoint" if first else "the start, as no step is in a checkpoint yet"
    said = said if first else said.replace("later ", "")
    assert f"to continue from {where}{said}: cohort resume {directory.root}" in shown
    assert f"{first}/4" in shown
