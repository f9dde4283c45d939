"""How long a pipeline takes, by the seconds of each pass on each stage: the order is static, so times follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.pipelining.stage_order import Direction, StagePass, stage_order

__all__ = ["PassTime", "PipelineTimes", "simulate_pipeline"]


@dataclass(frozen=True, kw_only=True)
class PassTime:
    """When a pass of a stage began and ended, in seconds."""

    stage: int
    what: StagePass
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class PipelineTimes:
    """All passes of a window.

    Attributes:
        passes: By stage, in the order they ran.
    """

    passes: tuple[tuple[PassTime, ...], ...]

    @property
    def seconds(self) -> float:
        return max((own[-1].end for own in self.passes if own), default=0.0)

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Seconds that each stage computes."""
        return tuple(sum(each.end - each.begin for each in own) for own in self.passes)

    @property
    def bubble_ratio(self) -> float:
        """Share of the stages' time in which they compute nothing."""
        total = len(self.passes) * self.seconds
        return 1.0 - sum(self.busy_seconds) / total if total else 0.0


def simulate_pipeline(
    forward_seconds: Sequence[Sequence[float]],
    backward_seconds: Sequence[Sequence[float]],
    *,
    transfer_seconds: float = 0.0,
) -> PipelineTimes:
    """Return the times of a window of micro-batches.

    Args:
        forward_seconds, backward_seconds: By stage and micro-batch; a no-op takes 0.
        transfer_seconds: From the end of a pass until the next stage has what it sends; stages do not wait for sends.
    """
    num_stages = len(forward_seconds)
    num_micro_batches = len(forward_seconds[0]) if num_stages else 0
    orders = [stage_order(num_micro_batches, stage=stage, num_stages=num_stages) for stage in range(num_stages)]
    ended: dict[tuple[int, StagePass], float] = {}
    places, free = [0] * num_stages, [0.0] * num_stages
    passes: list[list[PassTime]] = [[] for _ in range(num_stages)]
    remaining = sum(map(len, orders))
    while remaining:
        before = remaining
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                what = order[places[stage]]
                arrived = _arrival(stage, what, num_stages=num_stages, ended=ended, transfer_seconds=transfer_seconds)
                if arrived is None:
                    break
                seconds = forward_seconds if what.direction is Direction.FORWARD else backward_seconds
                begin = max(free[stage], arrived)
                free[stage] = ended[stage, what] = begin + seconds[stage][what.micro_batch]
                passes[stage].append(PassTime(stage=stage, what=what, begin=begin, end=free[stage]))
                places[stage] += 1
                remaining -= 1
        assert remaining < before, "the order of some stage waits for itself"
    return PipelineTimes(passes=tuple(map(tuple, passes)))


def _arrival(
    stage: int,
    what: StagePass,
    *,
    num_stages: int,
    ended: dict[tuple[int, StagePass], float],
    transfer_seconds: float,
) -> float | None:
    """Return when a pass has what it needs of other passes; None while that is not known."""
    if what.direction is Direction.FORWARD:
        if stage == 0:
            return 0.0
        sender = stage - 1
    else:
        if stage == num_stages - 1:
            return ended.get((stage, StagePass(Direction.FORWARD, what.micro_batch)))
        sender = stage + 1
    end = ended.get((sender, what))
    return None if end is None else end + transfer_seconds
