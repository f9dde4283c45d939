"""Learning-rate schedules, as transformers' ``get_scheduler`` computes them: those that are functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from cohort.core.setting_fields import choice, number, whole

__all__ = [
    "DEFAULT_OPTIONS",
    "LR_END",
    "REQUIRED_OPTIONS",
    "SCHEDULE_OPTIONS",
    "Schedule",
    "ScheduleOptions",
    "schedule_factor",
]

_SHAPES = ("linear", "cosine", "1-sqrt")
LR_END = 1e-7
"""The rate that polynomial ends with by default, which is transformers'."""
_TIMESCALE = 10_000


class Schedule(StrEnum):
    """``lr_scheduler_type`` of the task file."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    POLYNOMIAL = "polynomial"
    INVERSE_SQRT = "inverse_sqrt"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """``lr_scheduler_kwargs`` of the task file; None: the schedule's own default."""

    num_cycles: float | None = number(
        None,
        "waves of the cosine (null: half a wave); cosine_with_restarts: falls from the peak (null: 1)",
        minimum=None,
    )
    min_lr: float | None = number(None, "*_with_min_lr: the rate at the end")
    min_lr_rate: float | None = number(None, "*_with_min_lr: the rate at the end as a share of the peak", most=1)
    warmup_lr_rate: float | None = number(
        None, "cosine_warmup_with_min_lr: share of the peak that the climb begins with (null: one step's)", most=1
    )
    lr_end: float | None = number(None, "polynomial: the rate at the end (null: 1e-7)")
    power: float | None = number(None, "polynomial: power of the share of steps that is left (null: 1)", minimum=None)
    timescale: int | None = whole(None, "inverse_sqrt: steps (null: those of the warm-up, or 10,000 without any)")
    num_decay_steps: int | None = whole(None, "warmup_stable_decay: steps of the decay at the end")
    num_stable_steps: int | None = whole(
        None, "warmup_stable_decay: steps at the peak (null: those that warm-up and decay leave)", minimum=0
    )
    warmup_type: str | None = choice(None, "warmup_stable_decay: shape of the climb (null: linear)", options=_SHAPES)
    decay_type: str | None = choice(None, "warmup_stable_decay: shape of the decay (null: cosine)", options=_SHAPES)
    min_lr_ratio: float | None = number(
        None, "warmup_stable_decay: the rate at the start and at the end as a share of the peak (null: 0)", most=1
    )

    def written(self) -> dict[str, float | int | str]:
        """Return the options that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def read_by(self, schedule: Schedule) -> ScheduleOptions:
        """Return the options that ``schedule`` reads; the others are None."""
        own = SCHEDULE_OPTIONS[schedule]
        return replace(self, **{field.name: None for field in fields(self) if field.name not in own})


DEFAULT_OPTIONS = ScheduleOptions()

SCHEDULE_OPTIONS: Mapping[Schedule, tuple[str, ...]] = {
    Schedule.CONSTANT: (),
    Schedule.LINEAR: (),
    Schedule.COSINE: ("num_cycles",),
    Schedule.CONSTANT_WITH_WARMUP: (),
    Schedule.COSINE_WITH_RESTARTS: ("num_cycles",),
    Schedule.COSINE_WITH_MIN_LR: ("num_cycles", "min_lr", "min_lr_rate"),
    Schedule.COSINE_WARMUP_WITH_MIN_LR: ("num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"),
    Schedule.POLYNOMIAL: ("lr_end", "power"),
    Schedule.INVERSE_SQRT: ("timescale",),
    Schedule.WARMUP_STABLE_DECAY: (
        "num_decay_steps",
        "num_stable_steps",
        "warmup_type",
        "decay_type",
        "min_lr_ratio",
        "num_cycles",
    ),
}
"""The options that each schedule reads."""

REQUIRED_OPTIONS: Mapping[Schedule, tuple[str, ...]] = {
    Schedule.COSINE_WITH_MIN_LR: ("min_lr_rate", "min_lr"),
    Schedule.COSINE_WARMUP_WITH_MIN_LR: ("min_lr_rate", "min_lr"),
    Schedule.WARMUP_STABLE_DECAY: ("num_decay_steps",),
}
"""The options of which a schedule needs exactly one."""


@dataclass(frozen=True, kw_only=True)
class _At:
    """A step, counted from 0, and what its factor follows from."""

    step: int
    num_steps: int
    warmup_steps: int
    learning_rate: float
    options: ScheduleOptions

    @property
    def climb(self) -> float:
        """The share of the warm-up that is done."""
        return self.step / max(1, self.warmup_steps)

    @property
    def progress(self) -> float:
        """The share of the steps after the warm-up that is done."""
        return (self.step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)


def schedule_factor(
    step: int,
    *,
    schedule: Schedule,
    num_steps: int,
    warmup_ratio: float,
    learning_rate: float = 1.0,
    options: ScheduleOptions = DEFAULT_OPTIONS,
) -> float:
    """Return the factor on the learning rate of optimizer step ``step`` (counted from 0).

    With warm-up the factor climbs from 0 over ``ceil(warmup_ratio * num_steps)`` steps, so the very first step does not
    move the weights: transformers' convention. Schedules span the full planned steps even if a trial stops early.

    Args:
        learning_rate: The peak, which options in units of the rate (``min_lr``, ``lr_end``) are divided by.
        options: Those that ``schedule`` reads; the others are passed over.
    """
    warmup_steps = math.ceil(warmup_ratio * num_steps)
    at = _At(
        step=step,
        num_steps=num_steps,
        warmup_steps=warmup_steps,
        learning_rate=learning_rate,
        options=options,
    )
    if step < warmup_steps and schedule not in _OWN_CLIMB:
        return at.climb
    return _FACTORS[schedule](at)


def _constant(at: _At) -> float:  # noqa: ARG001 - as the others
    return 1.0


def _linear(at: _At) -> float:
    return max(0.0, 1.0 - at.progress)


def _cosine(at: _At) -> float:
    return max(0.0, _wave(at.progress, _or(at.options.num_cycles, 0.5)))


def _cosine_with_restarts(at: _At) -> float:
    if at.progress >= 1.0:
        return 0.0
    falls = _or(at.options.num_cycles, 1.0)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((falls * at.progress) % 1.0))))


def _cosine_with_min_lr(at: _At) -> float:
    return max(0.0, _above(_least_share(at), _wave(at.progress, _or(at.options.num_cycles, 0.5))))


def _cosine_warmup_with_min_lr(at: _At) -> float:
    if at.step < at.warmup_steps:
        first = at.options.warmup_lr_rate
        if first is None:
            return (at.step + 1) / max(1, at.warmup_steps)
        return first + (1.0 - first) * at.step / max(1, at.warmup_steps - 1)
    progress = (at.step - at.warmup_steps + 1) / max(1, at.num_steps - at.warmup_steps)
    return max(0.0, _above(_least_share(at), _wave(progress, _or(at.options.num_cycles, 0.5))))


def _polynomial(at: _At) -> float:
    end = _or(at.options.lr_end, LR_END)
    decay_steps = at.num_steps - at.warmup_steps
    # a step past the last has the rate of the end, as elsewhere
    left = 1 - (at.step - at.warmup_steps) / decay_steps if at.step < at.num_steps else 0.0
    return ((at.learning_rate - end) * math.pow(left, _or(at.options.power, 1.0)) + end) / at.learning_rate


def _inverse_sqrt(at: _At) -> float:
    timescale = at.options.timescale or at.warmup_steps or _TIMESCALE
    return 1.0 / math.sqrt((at.step + timescale - at.warmup_steps) / timescale)


def _warmup_stable_decay(at: _At) -> float:
    options = at.options
    least, decay_steps = _or(options.min_lr_ratio, 0.0), options.num_decay_steps or 1
    stable_steps = options.num_stable_steps
    if stable_steps is None:
        stable_steps = at.num_steps - at.warmup_steps - decay_steps
    if at.step < at.warmup_steps:
        shape = options.warmup_type or "linear"
        climbs = {
            "linear": at.climb,
            "cosine": 0.5 * (1.0 - math.cos(math.pi * at.climb)),
            "1-sqrt": 1.0 - math.sqrt(1.0 - at.climb),
        }
        return max(0.0, _above(least, climbs[shape]))
    into_decay = at.step - at.warmup_steps - stable_steps
    if into_decay < 0:
        return 1.0
    if into_decay >= decay_steps:
        return least
    progress = into_decay / decay_steps
    falls = {
        "linear": 1.0 - progress,
        "cosine": _wave(progress, _or(options.num_cycles, 0.5)),
        "1-sqrt": 1.0 - math.sqrt(progress),
    }
    return max(0.0, _above(least, falls[options.decay_type or "cosine"]))


def _wave(progress: float, num_cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))


def _above(least: float, factor: float) -> float:
    return factor * (1.0 - least) + least


def _least_share(at: _At) -> float:
    if at.options.min_lr is not None:
        return at.options.min_lr / at.learning_rate
    return _or(at.options.min_lr_rate, 0.0)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


_FACTORS: Mapping[Schedule, Callable[[_At], float]] = {
    Schedule.CONSTANT: _constant,
    Schedule.LINEAR: _linear,
    Schedule.COSINE: _cosine,
    Schedule.CONSTANT_WITH_WARMUP: _constant,
    Schedule.COSINE_WITH_RESTARTS: _cosine_with_restarts,
    Schedule.COSINE_WITH_MIN_LR: _cosine_with_min_lr,
    Schedule.COSINE_WARMUP_WITH_MIN_LR: _cosine_warmup_with_min_lr,
    Schedule.POLYNOMIAL: _polynomial,
    Schedule.INVERSE_SQRT: _inverse_sqrt,
    Schedule.WARMUP_STABLE_DECAY: _warmup_stable_decay,
}
# they say themselves what the warm-up is; under all others the factor climbs linearly from 0
_OWN_CLIMB = (Schedule.COSINE_WARMUP_WITH_MIN_LR, Schedule.WARMUP_STABLE_DECAY)
