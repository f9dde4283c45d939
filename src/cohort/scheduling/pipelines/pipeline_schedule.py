"""The static order of passes on each stage of a pipeline: one forward, one backward (1F1B).

Stage s of S first runs S - s forward passes, then a backward and a forward pass in turn, then the backward passes that
are left. So at most S - s micro-batches are in flight on it, and its forward pass k + S - s follows its backward pass
k. On stage 0 that is k + S: with the bubble lemma's distance S, the norm of the gradient of a batch that ends in
micro-batch k is known there before the first forward pass that needs the stepped weights.

Where the stages share the loss head, each computes it for some rows of every micro-batch: the last stage sends their
hidden states after its forward pass, and its backward pass waits for their gradients. One more micro-batch in flight on
every stage, and so a distance of S + 1, puts a forward pass between the two. The other stages compute their shares
meanwhile: between the passes that, with passes of one length, end and begin in the middle of that time.

Source: PipeDream-flush's steady state without a flush; mLoRA 3.2 with adapters in the place of batches. Sharing the
head: Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism (MLSys 2025), which divides the
vocabulary; we divide the rows, so that every sum keeps its order and its bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum

__all__ = ["Direction", "StagePass", "batch_distance", "most_in_flight", "stage_order"]


class Direction(Enum):
    """Which way a pass goes through the layers, or that it is a stage's share of the loss head."""

    FORWARD = "forward"
    BACKWARD = "backward"
    HEAD = "head"


@dataclass(frozen=True)
class StagePass:
    """One pass of one micro-batch on a stage."""

    direction: Direction
    micro_batch: int


def batch_distance(num_stages: int, *, shares_head: bool = False) -> int:
    """Return how many micro-batches after one that ends an adapter's batch its next batch may begin."""
    return num_stages + shares_head


def most_in_flight(stage: int, *, num_stages: int, shares_head: bool = False) -> int:
    """Return the most micro-batches whose activations a stage holds."""
    return batch_distance(num_stages, shares_head=shares_head) - stage


@functools.lru_cache(maxsize=64)
def stage_order(
    num_micro_batches: int, *, stage: int, num_stages: int, shares_head: bool = False
) -> tuple[StagePass, ...]:
    """Return the passes of a stage in their order; every stage has each micro-batch once in each direction.

    Args:
        shares_head: Whether every stage computes a share of the loss head.
    """
    ahead = min(most_in_flight(stage, num_stages=num_stages, shares_head=shares_head), num_micro_batches)
    order = [StagePass(Direction.FORWARD, k) for k in range(ahead)]
    # the backward pass of the last stage is as many passes before that of this one
    from_end, num_shares = num_stages - 1 - stage, 0

    def share_until(backward: int) -> None:
        """Add the shares that come before a backward pass."""
        nonlocal num_shares
        end = min(backward + (from_end + 1) // 2 + 1, num_micro_batches) if shares_head else 0
        order.extend(StagePass(Direction.HEAD, number) for number in range(num_shares, end))
        num_shares = max(num_shares, end)

    for k in range(num_micro_batches):
        share_until(k)
        order.append(StagePass(Direction.BACKWARD, k))
        # on every other stage the middle of that time is before the forward pass
        if from_end % 2 == 0:
            share_until(k + 1)
        if k + ahead < num_micro_batches:
            order.append(StagePass(Direction.FORWARD, k + ahead))
    return tuple(order)
