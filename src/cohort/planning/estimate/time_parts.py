"""The seconds of a task, part by part, and those that no measurement of it gives."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.scheduling.cost.model import CostSource

__all__ = ["FINISH_SECONDS", "GPU_SET_UP_SECONDS", "READ_BYTES_PER_SECOND", "START_SECONDS", "TimeParts"]

# starting Python with torch; on a GPU also its libraries, kernels and first graphs; reading weights from a local disk
START_SECONDS = 5.0
GPU_SET_UP_SECONDS = 10.0
READ_BYTES_PER_SECOND = 1.5e9
# adapters, tables and report at the end
FINISH_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class TimeParts:
    """Seconds of a task from the start of its process to its end, every trial trained in full.

    Attributes:
        training, evaluation: All trials' seconds.
        comparison: Of the best trials on all validation rows, and of the winner on the test rows.
        start: Until the first step.
        rest: Records, checkpoints, and the results at the end.
        source: Where a step's seconds come from.
    """

    training: float
    evaluation: float
    comparison: float
    start: float
    rest: float
    source: CostSource

    @property
    def shortened(self) -> float:
        """The part that early exits shorten: the comparison, too, may only cost its share of the search."""
        return self.training + self.evaluation + self.comparison

    @property
    def total(self) -> float:
        return self.shortened + self.start + self.rest
