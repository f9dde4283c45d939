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
    ended: dict[tuple[int, StagePass], float] = {}
    places, free = [0] * num_stages, [0.0] * num_stages
    passes: list[list[PassTime]] = [[] for _ in range(num_stages)]
    remaining = sum(map(len, orders))
    while remaining:
        before = remaining
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                what = order[places[stage]]
                needed = _needed(stage, what, num_stages=num_stages, shares_head=head_seconds is not None)
                if not needed <= ended.keys():
                    break
                arrived = (ended[other] + transfer_seconds * (other[0] != stage) for other in needed)
                begin = max(free[stage], *arrived, 0.0)
                free[stage] = ended[stage, what] = begin + seconds_of[what.direction][stage][what.micro_batch]
                passes[stage].append(PassTime(stage=stage, what=what, begin=begin, end=free[stage]))
                places[stage] += 1
                remaining -= 1
        assert remaining < before, "the order of some stage waits for itself"
    return PipelineTimes(passes=tuple(map(tuple, passes)))


def _needed(stage: int, what: StagePass, *, num_stages: int, shares_head: bool) -> set[tuple[int, StagePass]]:
    """Return the passes, with their stages, that a pass of a stage reads."""
    last = num_stages - 1
    forward = StagePass(Direction.FORWARD, what.micro_batch)
    if what.direction is Direction.FORWARD:
        return {(stage - 1, what)} if stage > 0 else set()
    if what.direction is Direction.HEAD:
        return {(last, forward)}
    if stage < last:
        return {(stage + 1, what)}
    if not shares_head:
        return {(last, forward)}
    return {(each, StagePass(Direction.HEAD, what.micro_batch)) for each in range(num_stages)}
