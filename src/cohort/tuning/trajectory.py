"""A trial's curves as the early-exit rules see them: a function of its events and of nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Point", "Trajectory", "curve_noise", "least_squares_slope"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value of a curve after ``step`` optimizer steps."""

    step: int
    value: float


@dataclass(kw_only=True)
class Trajectory:
    """Losses of one trial; owned and fed by the study, read by the rules.

    Both series get one point per evaluation: the train point is the EMA over optimizer steps
    (``ema_1 = first loss``, ``ema = a * loss + (1 - a) * ema``) read at the evaluation, the validation point is
    the raw loss.

    Attributes:
        ema_weight: ``a`` of the EMA, in (0, 1].
        num_steps: Optimizer steps seen.
        num_tokens: Tokens trained on, prompts included.
        num_evaluation_tokens: Tokens evaluated.
        last_loss: Loss of the last step; None before the first.
        ema: The EMA now; None before the first step.
        train: Points of the smoothed training loss.
        validation: Points of the validation loss.
        best_validation: Lowest finite validation loss so far, the earliest of equals; None before the first.
    """

    ema_weight: float = 0.1
    num_steps: int = 0
    num_tokens: int = 0
    num_evaluation_tokens: int = 0
    last_loss: float | None = None
    ema: float | None = None
    train: list[Point] = field(default_factory=list)
    validation: list[Point] = field(default_factory=list)
    best_validation: Point | None = None

    def add_step(self, loss: float, *, num_tokens: int = 0) -> None:
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.last_loss = loss
        # The first loss itself begins the average: from 0 the first points would rise whatever the trial does.
        self.ema = loss if self.ema is None else self.ema_weight * loss + (1 - self.ema_weight) * self.ema

    def add_evaluation(self, validation_loss: float, *, num_tokens: int = 0) -> None:
        """Take in an evaluation after the steps seen so far; both series grow by one point."""
        assert self.ema is not None, "an evaluation needs at least one step before it"
        self.num_evaluation_tokens += num_tokens
        self.train.append(Point(step=self.num_steps, value=self.ema))
        self.validation.append(Point(step=self.num_steps, value=validation_loss))
        # Strictly lower, so that the earliest of equals stays: it took the least training.
        best = self.best_validation
        if math.isfinite(validation_loss) and (best is None or validation_loss < best.value):
            self.best_validation = self.validation[-1]

    @property
    def last_evaluated_step(self) -> int:
        """Steps at the last evaluation; 0 before the first."""
        return self.validation[-1].step if self.validation else 0

    def slopes(self, window: int) -> tuple[float, float] | None:
        """Return the (train, validation) slopes over the last ``window`` points, in loss per evaluation.

        None with fewer points than ``window``.
        """
        if len(self.validation) < window:
            return None
        train = least_squares_slope([point.value for point in self.train[-window:]])
        validation = least_squares_slope([point.value for point in self.validation[-window:]])
        return train, validation


def least_squares_slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through ``values`` at indices 0, 1, 2, ..."""
    assert len(values) >= 2, "a slope needs two points"
    # Integer weights and one division: for two values it is their difference to the last bit, so that a slope equal
    # to the threshold counts on every machine.
    weights = [2 * index - (len(values) - 1) for index in range(len(values))]
    weighted = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    return 2 * weighted / sum(weight * weight for weight in weights)


def curve_noise(values: Sequence[float]) -> float:
    """Return the median distance of a point from the middle of its two neighbours: how much the curve jumps.

    A steady fall or rise has none, however steep. Infinite with fewer than three points, which tell nothing of it.
    """
    triples = zip(values, values[1:], values[2:], strict=False)
    distances = [abs(point - (before + after) / 2) for before, point, after in triples]
    return statistics.median(distances) if distances else math.inf
