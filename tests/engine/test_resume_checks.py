"""What a resume refuses and what it only tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.engine.resume_checks import (
    changed_functions_warning,
    require_same_inputs,
    require_same_task,
    surroundings_warning,
)
from cohort.machine.machine import cpu_name
from cohort.prepare.preparation import Preparation, prepare
from cohort.runs.fact_groups import MachineFacts
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def preparation(tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    return prepare(tiny_task(write_inputs(tmp_path_factory.mktemp("same"))), clock=SystemClock())


def test_the_same_machine_is_not_worth_a_word(preparation: Preparation) -> None:
    require_same_inputs(preparation.facts, preparation)
    assert surroundings_warning(preparation.facts.machine, preparation.facts.machine) is None
    assert preparation.facts.machine.device == f"cpu ({cpu_name()})"


def test_other_versions_are_told(preparation: Preparation) -> None:
    machine = preparation.facts.machine
    now = machine.versions or {}
    then = replace(machine, versions={**now, "torch": "2.0.1", "triton": "9.9", "numpy": "1.0"})
    require_same_inputs(replace(preparation.facts, machine=then), preparation)
    warning = surroundings_warning(then, machine)
    assert warning is not None
    assert f"torch {now['torch']} (was 2.0.1), triton {now.get('triton', 'nothing')} (was 9.9): the bits" in warning
    assert "numpy" not in warning


def test_another_processor_is_told_and_another_kind_of_device_refused(preparation: Preparation) -> None:
    facts = preparation.facts
    elder = replace(facts.machine, device="cpu (Elder One)")
    require_same_inputs(replace(facts, machine=elder), preparation)
    assert f"device cpu ({cpu_name()}) (was cpu (Elder One))" in str(surroundings_warning(elder, facts.machine))
    with pytest.raises(InputError, match="the device changed"):
        require_same_inputs(replace(facts, machine=replace(elder, device="cuda (Elder One)")), preparation)


def test_settings_of_rules_that_are_not_active_may_come_and_go(preparation: Preparation, tmp_path: Path) -> None:
    task = preparation.task
    before = task.model_dump(mode="json")
    before["early_exit"] = {**before["early_exit"], "patience": 9, "gone_since": 1}
    require_same_task(before, task, path=tmp_path / "task.yaml")
    before["early_exit"]["select_fraction"] = 0.9
    with pytest.raises(InputError, match=r"early_exit\.select_fraction: found 0\.5; allowed: 0\.9"):
        require_same_task(before, task, path=tmp_path / "task.yaml")


def test_keys_that_the_recording_version_did_not_have_do_not_stop_a_resume(
    preparation: Preparation, tmp_path: Path
) -> None:
    task = preparation.task
    before = task.model_dump(mode="json")
    for key in ("metrics", "normalize", "answer_pattern", "greater_is_better"):
        del before["evaluation"][key]
    require_same_task(before, task, path=tmp_path / "task.yaml")
    del before["evaluation"]["max_examples"]
    # this one is set in the task, and not to its default
    with pytest.raises(InputError, match=r"evaluation\.max_examples"):
        require_same_task(before, task, path=tmp_path / "task.yaml")


def test_the_file_of_a_metric_may_move_and_its_code_may_not_change_unnoticed(preparation: Preparation) -> None:
    def with_metric(metric: str) -> TaskFile:
        plain = preparation.task.model_dump(mode="json")
        return TaskFile.model_validate({**plain, "evaluation": {**plain["evaluation"], "metric": metric}})

    before = with_metric("/old/mine.py:score").model_dump(mode="json")
    require_same_task(before, with_metric("/new/mine.py:score"), path=Path("task.yaml"))
    with pytest.raises(InputError, match=r"evaluation\.metric"):
        require_same_task(before, with_metric("/old/mine.py:other"), path=Path("task.yaml"))
    then = replace(preparation.facts.inputs, metric_functions={"score": "a", "other": "b"})
    assert changed_functions_warning(then, then) is None
    of_loss = replace(then, metric_functions={"loss:focal": "a"})
    warning = changed_functions_warning(of_loss, replace(then, metric_functions={"loss:focal": "b"}))
    assert warning is not None
    assert warning.startswith("the loss function focal changed since the run began")
    warning = changed_functions_warning(then, replace(then, metric_functions={"score": "c", "other": "b"}))
    assert warning is not None
    assert "the metric function score changed" in warning


def test_a_resumed_run_keeps_its_numerics(preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    task, auto = (preparation.task.model_copy(update={"numerics": name}) for name in ("fast", "auto"))
    before = task.model_dump(mode="json")
    exact = task.model_copy(update={"numerics": "exact"})
    with pytest.raises(InputError, match="numerics: found exact; allowed: fast, as when the run began"):
        require_same_task(before, exact, path=path)
    # a task that leaves them to the machine leaves a run its own, and may name what was decided
    decided = auto.model_dump(mode="json")
    for then in (before, decided, exact.model_dump(mode="json")):
        require_same_task(then, auto, path=path)
    gpu = MachineFacts(device="cuda (NVIDIA H200)", numerics="exact")
    require_same_task(decided, exact, path=path, machine=gpu)
    with pytest.raises(InputError, match=r"numerics: found fast; allowed: exact \| auto, as when the run began"):
        require_same_task(decided, task, path=path, machine=gpu)
    # a CPU has one kind: the key changes nothing there
    for then in (before, decided, task.model_dump(mode="json")):
        for now in (auto, exact, task):
            require_same_task(then, now, path=path, machine=MachineFacts(device="cpu (any)"))
