"""How long a pipeline takes, by the seconds of each pass on each stage: the order is static, so times follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.scheduling.pipelines.pipeline_schedule import Direction, StagePass, stage_order

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
    head_seconds: Sequence[Sequence[float]] | None = None,
    transfer_seconds: float = 0.0,
) -> PipelineTimes:
    """Return the times of a window of micro-batches.

    Args:
        forward_seconds, backward_seconds: By stage and micro-batch; a no-op takes 0.
        head_seconds: Likewise, where the stages share the loss head; None where it is part of the last one's passes.
        transfer_seconds: From the end of a pass until the next stage has what it sends; stages do not wait for sends.
    """
    num_stages = len(forward_seconds)
    num_micro_batches = len(forward_seconds[0]) if num_stages else 0
    seconds_of = {Direction.FORWARD: forward_seconds, Direction.BACKWARD: backward_seconds}
    if head_seconds is not None:
        seconds_of[Direction.HEAD] = head_seconds
    orders = [
        stage_order(num_micro_batches, stage=stage, num_stages=num_stages, shares_head=head_seconds is not None)
        for stage in range(num_stages)
    ]
    ended = {direction: [[math.inf] * num_micro_batches for _ in orders] for direction in seconds_of}
    places, free = [0] * num_stages, [0.0] * num_stages
    passes: list[list[PassTime]] = [[] for _ in range(num_stages)]
    remaining = sum(map(len, orders))
    while remaining:
        before = remaining
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                what = order[places[stage]]
                arrived = _arrival(stage, what, ended=ended, transfer_seconds=transfer_seconds)
                if arrived == math.inf:
                    break
                begin = max(free[stage], arrived)
                free[stage] = begin + seconds_of[what.direction][stage][what.micro_batch]
                ended[what.direction][stage][what.micro_batch] = free[stage]
                passes[stage].append(PassTime(stage=stage, what=what, begin=begin, end=free[stage]))
                places[stage] += 1
                remaining -= 1
        assert remaining < before, "the order of some stage waits for itself"
    return PipelineTimes(passes=tuple(map(tuple, passes)))


def _arrival(
    stage: int, what: StagePass, *, ended: Mapping[Direction, Sequence[Sequence[float]]], transfer_seconds: float
) -> float:
    """Return when a pass has what it needs of other passes; infinity while that is not known."""
    number, last = what.micro_batch, len(ended[Direction.FORWARD]) - 1
    if what.direction is Direction.FORWARD:
        return ended[Direction.FORWARD][stage - 1][number] + transfer_seconds if stage else 0.0
    if what.direction is Direction.HEAD:
        return ended[Direction.FORWARD][last][number] + (transfer_seconds if stage < last else 0.0)
    if stage < last:
        return ended[Direction.BACKWARD][stage + 1][number] + transfer_seconds
    if Direction.HEAD not in ended:
        return ended[Direction.FORWARD][last][number]
    *others, own = (shares[number] for shares in ended[Direction.HEAD])
    return max([own, *(end + transfer_seconds for end in others)])
