"""One trial: a configuration, and where its training stands."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.spec import AdapterSpec
from cohort.data.order import SampleOrder
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.schedules import DEFAULT_OPTIONS, Schedule, ScheduleOptions, schedule_factor

__all__ = ["TrialSpec", "TrialState"]


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """Everything that determines a trial's training, from its plan on: :func:`plan_trial` makes it for executors.

    Attributes:
        trial_id: Number within the task.
        seed: Trial seed: initial weights, order of samples and dropout come from it.
        learning_rate: Peak rate.
        num_steps: Optimizer steps of the full planned training.
        schedule: Shape of the learning rate over the planned steps.
        schedule_options: What else the shape needs.
        warmup_ratio: Share of the planned steps over which the rate climbs.
        weight_decay: AdamW's decoupled decay.
        max_grad_norm: Norm the gradient is clipped to; 0 or infinity does not clip.
        loraplus_lr_ratio: Learning rate of B as a multiple of ``learning_rate``, that of A (LoRA+, Hayou et al. 2024).
        optim: Its optimizer, by the name of its file in :mod:`cohort.training.optimizers`.
        beta1, beta2, epsilon: ``adam_beta1``, ``adam_beta2`` and ``adam_epsilon``, for the optimizers that read them.
        objective: What it minimises, with the trial's own numbers.
    """

    trial_id: int
    seed: int
    adapter: AdapterSpec
    learning_rate: float
    batch_size: int
    num_steps: int
    schedule: Schedule = Schedule.CONSTANT
    schedule_options: ScheduleOptions = DEFAULT_OPTIONS
    warmup_ratio: float = 0.0
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    loraplus_lr_ratio: float = 1.0
    optim: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    objective: Objective = DEFAULT_OBJECTIVE

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of optimizer step ``step``, counted from 0."""
        factor = schedule_factor(
            step,
            schedule=self.schedule,
            num_steps=self.num_steps,
            warmup_ratio=self.warmup_ratio,
            learning_rate=self.learning_rate,
            options=self.schedule_options,
        )
        return self.learning_rate * factor

    def order(self, num_samples: int) -> SampleOrder:
        """Return which of ``num_samples`` each step trains on."""
        return SampleOrder(num_samples, seed=self.seed, batch_size=self.batch_size)


@dataclass(kw_only=True)
class TrialState:
    """What is kept of a trial out of its slot: the executor makes it when it is asked for the state.

    Parking keeps it and a checkpoint stores it. One executor or one store owns it at a time.

    Attributes:
        adapter: Weights and moments; the data position follows from ``step``.
        step: Optimizer steps completed.
    """

    adapter: AdapterState
    step: int = 0
