"""The static order of passes on each stage of a pipeline: one forward, one backward (1F1B).

Stage s of S first runs S - s forward passes, then a backward and a forward pass in turn, then the backward passes that
are left. So at most S - s micro-batches are in flight on it, and its forward pass k + S - s follows its backward pass
k. On stage 0 that is k + S: with the bubble lemma's distance S, the norm of the gradient of a batch that ends in
micro-batch k is known there before the first forward pass that needs the stepped weights.

Source: PipeDream-flush's steady state without a flush; mLoRA 3.2 with adapters in the place of batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Direction", "StagePass", "most_in_flight", "stage_order"]


class Direction(Enum):
    """Which way a pass goes through the layers."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class StagePass:
    """One pass of one micro-batch on a stage."""

    direction: Direction
    micro_batch: int


def most_in_flight(stage: int, *, num_stages: int) -> int:
    """Return the most micro-batches whose activations a stage holds."""
    return num_stages - stage


def stage_order(num_micro_batches: int, *, stage: int, num_stages: int) -> tuple[StagePass, ...]:
    """Return the passes of a stage in their order; every stage has each micro-batch once in each direction."""
    ahead = min(most_in_flight(stage, num_stages=num_stages), num_micro_batches)
    order = [StagePass(Direction.FORWARD, k) for k in range(ahead)]
    for k in range(num_micro_batches):
        order.append(StagePass(Direction.BACKWARD, k))
        if k + ahead < num_micro_batches:
            order.append(StagePass(Direction.FORWARD, k + ahead))
    return tuple(order)
