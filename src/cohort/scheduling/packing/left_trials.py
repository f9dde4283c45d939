"""The trials of a run that are left, as a problem of the packing planner: what each has still to do, and where.

A pack of a run is on one executor; several ranks that hold one model together are one. Its memory is the room of the
bank: rank rows and slots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, CostModel, CostSource, StepCost
from cohort.scheduling.packing.records import PackingProblem, PackItem

__all__ = ["left_trials", "left_work"]

# Trials that differ by few steps count as equal: the planner's programs grow with the kinds of trials. Steps that are
# left are rounded up to one of this many parts of a trial.
PARTS = 16


def left_work(work: AdapterWork, *, num_done: int) -> AdapterWork:
    """Return what is left of a trial after ``num_done`` steps, at least one step."""
    part = max(1, math.ceil(work.num_steps / PARTS))
    left = max(1, work.num_steps - num_done)
    return replace(work, num_steps=min(work.num_steps, math.ceil(left / part) * part))


def left_trials(
    requests: Sequence[Request], *, works: Mapping[int, AdapterWork], capacity: Capacity, cost: StepCost
) -> PackingProblem:
    """Return the problem of dividing trials over the executors of ``capacity``.

    Args:
        requests: The trials that are left.
        works: What each has still to do, by trial.
        cost: Of a step of one executor.
    """
    return PackingProblem(
        trials=tuple(
            PackItem(trial_id=request.trial_id, work=works[request.trial_id], state_bytes={1: request.r})
            for request in requests
        ),
        num_gpus=capacity.num_ranks,
        # the planner's programs need a convex cost
        cost=CostModel(by_num_gpus={1: replace(cost, launches=None)}, sources={1: CostSource.ANALYTIC}),
        room_bytes={1: float(capacity.rank_rows)},
        most_trials=capacity.num_slots,
    )
