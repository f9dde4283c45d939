"""Schedules equal transformers' own, at every step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType

from cohort.training.schedules import (
    REQUIRED_OPTIONS,
    SCHEDULE_OPTIONS,
    Schedule,
    ScheduleOptions,
    schedule_factor,
)

RATE = 3e-4
# every option of every schedule, alone and with others
OPTIONS: dict[Schedule, list[dict[str, Any]]] = {
    Schedule.CONSTANT: [{}],
    Schedule.LINEAR: [{}],
    Schedule.COSINE: [{}, {"num_cycles": 1.5}],
    Schedule.CONSTANT_WITH_WARMUP: [{}],
    Schedule.COSINE_WITH_RESTARTS: [{}, {"num_cycles": 3}],
    Schedule.COSINE_WITH_MIN_LR: [{"min_lr": 1e-5}, {"min_lr_rate": 0.1, "num_cycles": 2.5}],
    Schedule.COSINE_WARMUP_WITH_MIN_LR: [
        {"min_lr": 1e-5},
        {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2, "num_cycles": 1.5},
    ],
    Schedule.POLYNOMIAL: [{}, {"lr_end": 1e-5, "power": 2.5}, {"lr_end": 0.0}],
    Schedule.INVERSE_SQRT: [{}, {"timescale": 5}],
    Schedule.WARMUP_STABLE_DECAY: [
        {"num_decay_steps": 1},
        {"num_decay_steps": 5, "decay_type": "linear", "warmup_type": "cosine", "min_lr_ratio": 0.1},
        {"num_decay_steps": 3, "num_stable_steps": 2, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"},
        {"num_decay_steps": 5, "num_cycles": 1.5},
    ],
}
CASES = [(schedule, options) for schedule, each in OPTIONS.items() for options in each]
# they follow what is measured, not the step alone
NO_FUNCTIONS_OF_THE_STEP = {SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY}


# transformers warns where the numbers of stable and of all steps are given, which its own get_scheduler always does
@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
@pytest.mark.parametrize(("schedule", "options"), CASES)
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.03, 0.25])
@pytest.mark.parametrize("num_steps", [1, 7, 40])
def test_factors_equal_transformers(
    schedule: Schedule, options: dict[str, Any], warmup_ratio: float, num_steps: int
) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    # under transformers' own `constant` nothing warms up; here warmup_ratio holds for every schedule
    name = "constant_with_warmup" if schedule is Schedule.CONSTANT else schedule.value
    expected = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=math.ceil(warmup_ratio * num_steps),
        num_training_steps=num_steps,
        scheduler_specific_kwargs=options,
    )
    for step in range(num_steps):
        factor = schedule_factor(
            step,
            schedule=schedule,
            num_steps=num_steps,
            warmup_ratio=warmup_ratio,
            learning_rate=RATE,
            options=ScheduleOptions(**options),
        )
        assert RATE * factor == pytest.approx(expected.get_last_lr()[0], abs=1e-15), f"step {step}"
        optimizer.step()
        # past the last step polynomial divides by the steps that a warm-up of all of them leaves, which are none
        if step + 1 < num_steps:
            expected.step()


def test_every_schedule_of_transformers_that_is_a_function_of_the_step_is_here() -> None:
    theirs = {kind.value for kind in SchedulerType if kind not in NO_FUNCTIONS_OF_THE_STEP}
    assert theirs == {schedule.value for schedule in Schedule}


@pytest.mark.parametrize("schedule", list(Schedule))
def test_an_option_counts_where_it_is_declared_and_nowhere_else(schedule: Schedule) -> None:
    other = {
        "num_cycles": 1.25, "min_lr": RATE / 3, "min_lr_rate": 0.3, "warmup_lr_rate": 0.4, "lr_end": RATE / 4,
        "power": 3.0, "timescale": 3, "num_decay_steps": 7, "num_stable_steps": 2, "warmup_type": "cosine",
        "decay_type": "linear", "min_lr_ratio": 0.2,
    }  # fmt: skip
    assert other.keys() == vars(ScheduleOptions()).keys()
    needed = {name: {"min_lr_rate": 0.1, "num_decay_steps": 5}[name] for name in REQUIRED_OPTIONS.get(schedule, ())[:1]}

    def factors(options: dict[str, Any]) -> list[float]:
        own = ScheduleOptions(**options)
        return [
            schedule_factor(step, schedule=schedule, num_steps=20, warmup_ratio=0.2, learning_rate=RATE, options=own)
            for step in range(20)
        ]

    plain = factors(needed)
    read = {name for name, value in other.items() if factors({**needed, name: value}) != plain}
    assert read == set(SCHEDULE_OPTIONS[schedule])
    kept = ScheduleOptions(**{**other, **needed}).read_by(schedule)  # type: ignore[arg-type]
    assert kept.written().keys() == set(SCHEDULE_OPTIONS[schedule])
