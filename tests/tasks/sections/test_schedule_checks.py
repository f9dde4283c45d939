"""Options of schedules: those that a task's trials read, those that they need, and rates that end above the peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.tasks.loading import load_task
from cohort.tasks.trial_values import added_parameters
from tests.tasks.task_files import BASE, problems_of, write

_KWARGS = "training.lr_scheduler_kwargs"


@pytest.mark.parametrize(
    ("training", "search", "key", "found", "hint"),
    [
        (
            "{lr_scheduler_kwargs: {num_cycles: 3}}",
            "",
            f"{_KWARGS}.num_cycles",
            "num_cycles with lr_scheduler_type: constant",
            "Remove num_cycles, or write lr_scheduler_type: cosine_with_restarts",
        ),
        (
            "{lr_scheduler_kwargs: {min_lr: 1e-6}}",
            "{lr_scheduler_type: [linear, cosine]}",
            f"{_KWARGS}.min_lr",
            "min_lr with lr_scheduler_type: linear, cosine",
            "cosine_warmup_with_min_lr",
        ),
        (
            "{}",
            "{lr_scheduler_type: [linear, warmup_stable_decay]}",
            _KWARGS,
            "warmup_stable_decay without num_decay_steps",
            "lr_scheduler_kwargs: {num_decay_steps: 20}",
        ),
        (
            "{lr_scheduler_type: cosine_with_min_lr}",
            "",
            _KWARGS,
            "cosine_with_min_lr without min_lr_rate or min_lr",
            "lr_scheduler_kwargs: {min_lr_rate: 0.1}",
        ),
        (
            "{lr_scheduler_type: polynomial, lr_scheduler_kwargs: {lr_end: 1e-4}}",
            "{learning_rate: [1e-3, 1e-4]}",
            f"{_KWARGS}.lr_end",
            "lr_end 0.0001 with learning_rate 0.0001",
            "Write lr_end: 1e-05",
        ),
        ("{lr_scheduler_kwargs: {cycles: 3}}", "", f"{_KWARGS}.cycles", "unknown key", "num_cycles"),
        (
            "{lr_scheduler_type: cosine_with_min_lr, lr_scheduler_kwargs: {min_lr: 1e-6, min_lr_rate: 0.1}}",
            "",
            f"{_KWARGS}.min_lr",
            "min_lr and min_lr_rate",
            "Remove min_lr",
        ),
        ("{lr_scheduler_type: cosine, lr_scheduler_kwargs: {num_cycles: 0}}", "", f"{_KWARGS}.num_cycles", "0", ""),
    ],
)
def test_what_no_schedule_reads_and_what_one_lacks_is_named(
    folder: Path, training: str, search: str, key: str, found: str, hint: str
) -> None:
    text = BASE + f"training: {training}\n" + (f"search: {{space: {search}}}\n" if search else "")
    (problem,) = problems_of(folder, text)
    assert str(problem.where).endswith(key)
    assert found in problem.found
    assert hint in problem.hint


def test_options_of_one_searched_schedule_are_right_and_are_written_back(folder: Path) -> None:
    text = "training: {lr_scheduler_kwargs: {num_cycles: 3}}\n"
    task = load_task(
        write(folder, BASE + text + "search: {space: {lr_scheduler_type: [linear, cosine_with_restarts]}}\n")
    )
    assert task.model_dump(mode="json")["training"]["lr_scheduler_kwargs"] == {"num_cycles": 3}
    again = folder / "again.yaml"
    again.write_text(task.resolved_yaml())
    assert load_task(again).model_dump() == task.model_dump()
    assert (
        load_task(write(folder, BASE + "training: {lr_scheduler_kwargs: null}\n")).training.schedule_options().written()
        == {}
    )


def test_a_trial_that_is_added_has_the_options_of_its_run(folder: Path) -> None:
    task = load_task(write(folder, BASE))
    with pytest.raises(InputError, match=r"--lr_scheduler_type.*cosine_with_min_lr without min_lr_rate or min_lr"):
        added_parameters(task, {"lr_scheduler_type": "cosine_with_min_lr"})
    assert added_parameters(task, {"lr_scheduler_type": "polynomial"})["lr_scheduler_type"] == "polynomial"
