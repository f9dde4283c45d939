"""What the best checkpoint is chosen by: the validation loss, or a metric that evaluations report by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cohort.core.events import Evaluated

__all__ = ["LOSS", "ObjectiveMetric"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveMetric:
    """A metric and which way is better.

    Attributes:
        name: ``loss`` for the validation loss, else a key of ``Evaluated.metrics``.
        maximize: Whether more is better. A loss is minimized.
    """

    name: str = "loss"
    maximize: bool = False

    def __post_init__(self) -> None:
        if self.name == "loss" and self.maximize:
            raise ValueError("the metric 'loss' is minimized; name another metric to maximize it")

    @property
    def label(self) -> str:
        """The metric in words."""
        return "validation loss" if self.name == "loss" else self.name.replace("_", " ")

    def read(self, event: Evaluated) -> float | None:
        """Return the metric of an evaluation; None where it was not measured."""
        return self.read_record(event.validation_loss, event.metrics)

    def read_record(self, validation_loss: float, metrics: Mapping[str, float]) -> float | None:
        """Return the metric of what an evaluation measured; None where it was not."""
        return validation_loss if self.name == "loss" else metrics.get(self.name)

    def cost(self, value: float) -> float:
        """Return a number that is smaller for better values."""
        return -value if self.maximize else value


LOSS = ObjectiveMetric()
"""The validation loss, in nats per trained token."""
