"""Schedules equal transformers' own."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import get_scheduler

from cohort.training.schedules import Schedule, schedule_factor


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.03, 0.25])
@pytest.mark.parametrize("num_steps", [1, 7, 40])
def test_factors_equal_transformers(schedule: Schedule, warmup_ratio: float, num_steps: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = "constant_with_warmup" if schedule is Schedule.CONSTANT else schedule.value
    expected = get_scheduler(
        name, optimizer, num_warmup_steps=math.ceil(warmup_ratio * num_steps), num_training_steps=num_steps
    )
    for step in range(num_steps):
        factor = schedule_factor(step, schedule=schedule, num_steps=num_steps, warmup_ratio=warmup_ratio)
        assert factor == pytest.approx(expected.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        expected.step()
