"""A trial before it runs: its steps and when it is evaluated."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Candidate"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The steps of a trial, from its plan on: :func:`plan_candidate` makes it for the study and its exit rules.

    Attributes:
        trial_id: Its number; ties are broken by it.
        planned_steps: Optimizer steps of its full training; LR schedules span them whatever is decided.
        warmup_steps: Steps of the warm-up phase (early exit's, not the learning rate's), in [1, planned_steps].
        evaluation_steps: Steps after which it is evaluated, increasing; the last is ``planned_steps``.
    """

    trial_id: int
    planned_steps: int
    warmup_steps: int
    evaluation_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        problems = []
        # All problems at once: a caller that computed several of these wrongly sees all of them.
        if self.trial_id < 0:
            problems.append("trial_id must not be negative")
        if not 1 <= self.warmup_steps <= self.planned_steps:
            problems.append(f"warmup_steps {self.warmup_steps} must lie in [1, planned_steps {self.planned_steps}]")
        steps = self.evaluation_steps
        if not steps or steps[0] < 1 or any(a >= b for a, b in itertools.pairwise(steps)):
            problems.append(f"evaluation_steps must be increasing and start at 1 or later, not {steps}")
        # the result needs a validation loss at the last step
        elif steps[-1] != self.planned_steps:
            problems.append(
                f"evaluation_steps must end at planned_steps {self.planned_steps}; build them with plan_candidate()"
            )
        if problems:
            raise ValueError(f"trial {self.trial_id}: " + "; ".join(problems))

    def first_evaluation_at_share(self, share_of_steps: Fraction, *, after: int = 0) -> int | None:
        """Return the first evaluation step at or past a share of the planned steps and past step ``after``.

        None where there is none before the last step.
        """
        for step in self.evaluation_steps:
            # A comparison at the last step could save no training: the trial has finished.
            if step >= share_of_steps * self.planned_steps and step > after:
                return step if step < self.planned_steps else None
        return None
