"""Learning-rate schedules, as transformers' ``get_scheduler`` computes them."""

from __future__ import annotations

import math
from enum import StrEnum

__all__ = ["Schedule", "schedule_factor"]


class Schedule(StrEnum):
    """``lr_scheduler_type`` of the task file."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


def schedule_factor(step: int, *, schedule: Schedule, num_steps: int, warmup_ratio: float) -> float:
    """Return the factor on the learning rate of optimizer step ``step`` (counted from 0).

    With warm-up the factor climbs from 0 over ``ceil(warmup_ratio * num_steps)`` steps, so the very first step does not
    move the weights: transformers' convention. Schedules span the full planned steps even if a trial stops early.
    """
    warmup_steps = math.ceil(warmup_ratio * num_steps)
    if step < warmup_steps:
        return step / warmup_steps
    if schedule is Schedule.CONSTANT:
        return 1.0
    progress = (step - warmup_steps) / max(1, num_steps - warmup_steps)
    if schedule is Schedule.LINEAR:
        return max(0.0, 1.0 - progress)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
