"""Parallel coordinates: an axis for each hyperparameter that varies by itself."""

from __future__ import annotations

import re
from pathlib import Path

from cohort.core.events import Evaluated, StepDone
from cohort.report.writing import render_report
from cohort.runs.fact_groups import TaskFacts
from cohort.runs.records import JsonValue, TrialRecord
from cohort.runs.store import RunStore
from tests.runs.synthetic_run import new_best


def _three_trials(path: Path, *, alpha: JsonValue) -> str:
    """The page of three trials of which none repeats a value of another."""
    store = RunStore.create(path)
    space: dict[str, JsonValue] = {"lora_alpha": alpha, "r": [4, 8, 16], "learning_rate": {"min": 1e-5, "max": 1e-3}}
    store.set_facts(task=TaskFacts(document={"lora": {"lora_alpha": 32.0}, "search": {"space": space}}))
    settings: list[dict[str, JsonValue]] = [
        {"lora_alpha": 2.0 * r, "r": r, "learning_rate": rate} for r, rate in ((4, 7e-4), (16, 2e-5), (8, 9e-5))
    ]
    store.add_trials(
        [TrialRecord(trial_id=n, parameters=setting, planned_steps=1, seed=0) for n, setting in enumerate(settings)]
    )
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(3)]
    store.append(evaluated, map(new_best, evaluated))
    page = render_report(store.reader)
    store.close()
    return page


def test_only_what_the_task_writes_as_a_multiple_moves_with_another(tmp_path: Path) -> None:
    page = _three_trials(tmp_path / "run.db", alpha="2r")
    assert re.findall(r"\(([a-z_, ]+) moves with it\)", page) == ["lora_alpha"]
    assert re.findall(r"<figcaption>([a-z_]+) <span>best trial", page) == ["r", "learning_rate"]
    assert "through 2 hyperparameters" in page


def test_hyperparameters_that_never_repeat_a_value_are_drawn_apart(tmp_path: Path) -> None:
    page = _three_trials(tmp_path / "run.db", alpha=[8.0, 16.0, 32.0])
    assert "moves with it" not in page
    assert re.findall(r"<figcaption>([a-z_]+) <span>best trial", page) == ["lora_alpha", "r", "learning_rate"]
    assert "through 3 hyperparameters" in page


def test_a_switch_among_the_hyperparameters_is_drawn(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    store.add_trials(
        [
            TrialRecord(
                trial_id=n, parameters={"r": 8 * (1 + n // 2), "use_rslora": n % 2 == 0}, planned_steps=1, seed=0
            )
            for n in range(4)
        ]
    )
    store.append([StepDone(trial_id=n, step=1, loss=1.0, grad_norm=1, learning_rate=1, num_tokens=8) for n in range(4)])
    evaluated = [Evaluated(trial_id=n, step=1, validation_loss=1.0 + n) for n in range(4)]
    store.append(evaluated, map(new_best, evaluated))
    page = render_report(store.reader)
    store.close()
    assert "Parallel coordinates" in page
    assert ">true<" in page
