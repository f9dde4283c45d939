"""Schedules of windows: greedy at once, solved no worse, in order where that is asked."""

from __future__ import annotations

import random

import pytest

from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.microbatch.records import AdapterBatches, find_schedule_faults
from cohort.scheduling.pipelines.pipeline_schedule import batch_distance
from cohort.scheduling.pipelines.window_packing import (
    StageShares,
    WindowQuestion,
    greedy_schedule,
    solved_schedule,
)

QUICK = PackingLimits(work_limit=0.02)
PLAIN = StageShares(layers=(4, 4, 4))
SHARED = StageShares(layers=(4, 4, 4), head_layers=1.5, head_shares=(1 / 3, 1 / 3, 1 / 3))


def question(*, keeps_order: bool, stages: StageShares = PLAIN, num_adapters: int = 4) -> WindowQuestion:
    rng = random.Random(3)
    return WindowQuestion(
        adapters=tuple(
            AdapterBatches(
                adapter=slot,
                lengths=tuple(tuple(rng.randint(5, 30 * (1 + slot)) for _ in range(6)) for _ in range(4)),
            )
            for slot in range(num_adapters)
        ),
        token_budget=240,
        stages=stages,
        keeps_order=keeps_order,
        flat_tokens=32,
    )


@pytest.mark.parametrize("keeps_order", [True, False])
@pytest.mark.parametrize("stages", [PLAIN, SHARED], ids=["plain", "shared head"])
def test_a_solved_window_is_whole_and_no_slower(keeps_order: bool, stages: StageShares) -> None:
    asked = question(keeps_order=keeps_order, stages=stages)
    greedy, solved = greedy_schedule(asked), solved_schedule(asked, limits=QUICK)
    assert solved.seconds <= greedy.seconds
    assert solved == solved_schedule(asked, limits=QUICK)
    for found in (greedy, solved):
        assert not find_schedule_faults(
            found.micro_batches,
            asked.adapters,
            capacity=found.capacity,
            multiple=1,
            stages=batch_distance(3, shares_head=found.shares_head),
        )
        passed = [s for each in found.micro_batches for s in sorted(each.samples)]
        own = [[s for s in passed if s.adapter == adapter.adapter] for adapter in asked.adapters]
        assert not keeps_order or all(samples == sorted(samples) for samples in own)


def test_where_order_is_kept_the_solver_levels_what_runs_cannot() -> None:
    asked = question(keeps_order=True)
    assert solved_schedule(asked, limits=QUICK).seconds < 0.99 * greedy_schedule(asked).seconds


def test_nothing_is_planned_for_no_steps() -> None:
    asked = question(keeps_order=True, num_adapters=0)
    assert greedy_schedule(asked).micro_batches == ()
    assert solved_schedule(asked).micro_batches == ()
