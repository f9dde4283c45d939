"""An optimizer step that is launched and perhaps not done: the host may launch the next before it reads this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cohort.core.events import StepDone
from cohort.training.step_samples import StepSamples, finish_step

__all__ = ["LaunchedStep"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LaunchedStep:
    """One step of several trials, whose bank is after it for whatever is launched from now on.

    Attributes:
        samples: Those of the step; None where no trial took it.
        numbers: Waits for the step, and returns the terms of its groups and the norm of each trial's gradient.
    """

    samples: StepSamples | None
    numbers: Callable[[], Sequence[Sequence[float]]]

    @classmethod
    def of_none(cls) -> LaunchedStep:
        """Return a step that no trial takes."""
        return cls(samples=None, numbers=tuple)

    def events(self) -> tuple[StepDone, ...]:
        """Wait for the step and return its events in slot order; steps that were launched later are not waited for."""
        if self.samples is None:
            return ()
        terms, norms = self.numbers()
        return finish_step(self.samples, terms=terms, norms=norms)
