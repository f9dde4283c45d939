"""What the best checkpoint is chosen by: the validation loss, or a metric that evaluations report by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cohort.core.events import Evaluated

__all__ = ["LOSS", "ObjectiveMetric", "TieRule", "label_of"]


class TieRule(StrEnum):
    """Which of two checkpoints with the same value of the metric is better."""

    LOSS = "loss"
    """The one with the lower validation loss, then the later step, then the smaller trial id."""
    EARLIEST = "earliest"
    """The smaller trial id, then the earlier step: the rule of runs whose record names none."""


def label_of(name: str) -> str:
    """Return what people read for a metric's name."""
    return "validation loss" if name == "loss" else name.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class ObjectiveMetric:
    """A metric and which way is better.

    Attributes:
        name: ``loss`` for the validation loss, else a key of ``Evaluated.metrics``.
        maximize: Whether more is better. A loss is minimized.
        ties: Which checkpoint is better where values are equal, as small validation sets make them for shares.
    """

    name: str = "loss"
    maximize: bool = False
    ties: TieRule = TieRule.LOSS

    def __post_init__(self) -> None:
        if self.name == "loss" and self.maximize:
            raise ValueError("the metric 'loss' is minimized; name another metric to maximize it")

    @property
    def label(self) -> str:
        return label_of(self.name)

    def read(self, event: Evaluated) -> float | None:
        """Return the metric of an evaluation; None where it was not measured."""
        return self.read_record(event.validation_loss, event.metrics)

    def read_record(self, validation_loss: float, metrics: Mapping[str, float]) -> float | None:
        """Return the metric of what an evaluation measured; None where it was not."""
        return validation_loss if self.name == "loss" else metrics.get(self.name)

    def competing_value(self, validation_loss: float, metrics: Mapping[str, float]) -> float | None:
        """Return the metric of a checkpoint that may be the result; None where it or the loss is not finite."""
        value = self.read_record(validation_loss, metrics)
        # a checkpoint with a NaN loss is of no use, even where another metric looks fine
        is_usable = value is not None and math.isfinite(value) and math.isfinite(validation_loss)
        return value if is_usable else None

    def cost(self, value: float) -> float:
        """Return a number that is smaller for better values."""
        return -value if self.maximize else value

    def order(self, value: float, *, validation_loss: float, step: int, trial_id: int) -> tuple[float, ...]:
        """Return a sort key of a checkpoint: the better one's is smaller, and no two checkpoints share one."""
        if self.ties is TieRule.EARLIEST:
            return (self.cost(value), trial_id, step)
        # At equal loss the later checkpoint has seen more data. An untrained model that scores 0, as all others do, was
        # once returned for being first.
        return (self.cost(value), validation_loss, -step, trial_id)


LOSS = ObjectiveMetric()
"""The validation loss, in nats per trained token."""
