"""Micro-batches of a pipeline: every sample once, within capacity, and never before its adapter's last step is done."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.scheduling.pipelines.microbatch.choose_micro_batches import (
    MicroBatchSettings,
    choose_schedule,
    few_groups,
    group_adapters,
    least_capacity,
    pipeline_seconds,
    schedule_micro_batches,
)
from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.microbatch.records import (
    AdapterBatches,
    MicroBatch,
    PipelineSample,
    find_bubbles,
    find_schedule_faults,
    padded_tokens,
    with_no_ops,
)
from cohort.scheduling.pipelines.microbatch.solver_packing import pack_samples

QUICK = PackingLimits(work_limit=0.02)


def draw(seed: int, *, adapters: int, batches: int, longest: int = 60) -> list[AdapterBatches]:
    rng = random.Random(seed)
    found = []
    for adapter in range(adapters):
        top = rng.randint(5, longest)
        size = rng.choice([1, 2, 4, 8])
        lengths = tuple(
            tuple(rng.randint(1, top) for _ in range(size)) for _ in range(rng.randint(max(1, batches - 2), batches))
        )
        found.append(AdapterBatches(adapter=adapter, lengths=lengths))
    return found


def sample(adapter: int, batch: int, length: int = 1, place: int = 0) -> PipelineSample:
    return PipelineSample(adapter, batch, place, length)


@given(
    seed=st.integers(0, 10_000),
    adapters=st.integers(1, 7),
    batches=st.integers(1, 5),
    stages=st.integers(1, 6),
    multiple=st.sampled_from([1, 8]),
    uses_solver=st.booleans(),
    is_level=st.booleans(),
    keeps_order=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_schedule_breaks_the_lemma_or_loses_a_sample(
    seed: int,
    adapters: int,
    batches: int,
    stages: int,
    multiple: int,
    uses_solver: bool,
    is_level: bool,
    keeps_order: bool,
) -> None:
    given_batches = draw(seed, adapters=adapters, batches=batches)
    how = MicroBatchSettings(
        capacity=96,
        stages=stages,
        multiple=multiple,
        limits=QUICK,
        uses_solver=uses_solver,
        is_level=is_level,
        keeps_order=keeps_order,
    )
    schedule = schedule_micro_batches(given_batches, settings=how)
    assert find_schedule_faults(schedule, given_batches, capacity=96, multiple=multiple, stages=stages) == ()
    assert find_bubbles(schedule, stages=stages) == 0
    assert schedule == schedule_micro_batches(given_batches, settings=how), "the same question, the same schedule"
    if keeps_order:
        passed = [s for micro_batch in schedule for s in sorted(micro_batch.samples)]
        for adapter in given_batches:
            own = [s for s in passed if s.adapter == adapter.adapter]
            assert own == sorted(own), "an adapter's gradient is summed in its own order"


@pytest.mark.parametrize("seed", range(5))
def test_one_stage_is_plain_packing(seed: int) -> None:
    given_batches = draw(seed, adapters=4, batches=3)
    schedule = schedule_micro_batches(
        given_batches, settings=MicroBatchSettings(capacity=128, limits=QUICK, uses_solver=True)
    )
    assert all(micro_batch.samples for micro_batch in schedule), "no no-op"
    # no more than what packing each step of all adapters on its own takes
    steps = [[s for adapter in given_batches for s in adapter.samples(batch)] for batch in range(3)]
    alone = sum(len(pack_samples(step, capacity=128, limits=QUICK)) for step in steps if step)
    assert len(schedule) <= alone


def test_padding_counts_each_adapter_s_share_of_a_micro_batch() -> None:
    assert padded_tokens([sample(0, 0, 5), sample(0, 0, 4, 1), sample(1, 0, 1)], 8) == 16 + 8


def test_no_ops_stand_exactly_where_the_lemma_asks_for_them() -> None:
    schedule = [MicroBatch((sample(0, 0),)), MicroBatch((sample(1, 0),)), MicroBatch((sample(0, 1),))]
    assert with_no_ops(schedule, stages=2) == tuple(schedule)
    held = with_no_ops(schedule, stages=4)
    assert [len(m.samples) for m in held] == [1, 1, 0, 0, 1]
    assert find_bubbles(schedule, stages=4) == 1
    assert find_bubbles(held, stages=4) == 0
    shared = MicroBatch((sample(0, 0), sample(0, 1)))
    assert find_bubbles([shared], stages=1) == 1
    assert any("begins in 0" in fault for fault in find_schedule_faults(
        [shared], [AdapterBatches(adapter=0, lengths=((1,), (1,)))], capacity=9, multiple=1, stages=1))  # fmt: skip


def test_the_checker_finds_lost_samples_and_full_micro_batches() -> None:
    adapter = AdapterBatches(adapter=0, lengths=((5, 6),))
    faults = find_schedule_faults(
        [MicroBatch(adapter.samples(0)[:1])], [adapter], capacity=4, multiple=1, stages=1
    )  # fmt: skip
    assert any("missing" in fault for fault in faults)
    assert any("more than 4" in fault for fault in faults)


def test_short_rows_are_paired_with_long_ones_while_others_fill_the_pipe() -> None:
    adapters = [AdapterBatches(adapter=i, lengths=((10 * (i + 1),) * 4,)) for i in range(6)]
    how = MicroBatchSettings(capacity=100, stages=2)
    assert group_adapters(adapters, settings=how) == ((0, 5), (1, 4), (2, 3))
    # two adapters on a deep pipe: paired, nothing would stand between their batches
    assert group_adapters(adapters[:2], settings=dataclasses.replace(how, stages=4)) == ((0,), (1,))
    assert group_adapters(adapters, settings=dataclasses.replace(how, stages=1)) == ((0, 1, 2, 3, 4, 5),)


def test_many_small_batches_pass_together_where_launches_cost_as_much_as_tokens() -> None:
    adapters = [AdapterBatches(adapter=i, lengths=((10 + i,),) * 6) for i in range(8)]
    how = MicroBatchSettings(capacity=100, stages=2, is_level=True)
    # as many groups as stages, and one more; four would be pairs
    assert [len(groups) for groups in few_groups(adapters, settings=how)] == [2, 3]
    for groups in few_groups(adapters, settings=how):
        assert sorted(adapter for group in groups for adapter in group) == list(range(8))
        totals = [sum(10 + adapter for adapter in group) for group in groups]
        assert max(totals) - min(totals) <= 17
    assert few_groups(adapters[:4], settings=how) == []

    def launched(schedule: Sequence[MicroBatch]) -> float:
        return sum(max(40, each.tokens(1)) for each in schedule)

    _, chosen = choose_schedule(adapters, capacities=[100], settings=how, seconds_of=launched)
    assert len(chosen) == 2 * 6
    assert find_schedule_faults(chosen, adapters, capacity=100, multiple=1, stages=2) == ()
    # where order is kept, small micro-batches cost nothing
    ordered = dataclasses.replace(how, keeps_order=True)
    _, kept = choose_schedule(adapters, capacities=[100], settings=ordered, seconds_of=launched)
    assert len(kept) > len(chosen)


def test_merging_fills_what_a_batch_leaves() -> None:
    # each batch fills one and a half micro-batches: merged, four batches of four adapters take six instead of eight
    adapters = [AdapterBatches(adapter=i, lengths=((10, 10, 10),)) for i in range(4)]
    how = MicroBatchSettings(capacity=20, stages=2)
    schedule = schedule_micro_batches(adapters, settings=how, groups=[(0,), (1,), (2,), (3,)])
    assert len(schedule) == 6
    assert find_schedule_faults(schedule, adapters, capacity=20, multiple=1, stages=2) == ()


def test_more_adapters_need_fewer_no_ops() -> None:
    few, many = (draw(1, adapters=count, batches=4) for count in (1, 6))
    how = MicroBatchSettings(capacity=200, stages=5, limits=QUICK)
    shares = []
    for adapters in (few, many):
        schedule = schedule_micro_batches(adapters, settings=how)
        shares.append(sum(not m.samples for m in schedule) / len(schedule))
    assert shares[1] < shares[0]


def test_packing_in_several_processes_is_the_same() -> None:
    adapters = draw(3, adapters=4, batches=3)
    how = MicroBatchSettings(capacity=96, stages=3, limits=QUICK, uses_solver=True)
    assert schedule_micro_batches(adapters, settings=dataclasses.replace(how, num_processes=2)) == (
        schedule_micro_batches(adapters, settings=how)
    )


def test_the_least_capacity_that_is_nearly_as_fast() -> None:
    measured = {512: 50.0, 1024: 90.0, 2048: 96.0, 4096: 100.0}
    assert least_capacity(measured, longest_sample=300, most_tokens=8192) == 2048
    assert least_capacity(measured, longest_sample=300, most_tokens=1500) == 1024
    with pytest.raises(ValueError, match="5000 tokens"):
        least_capacity(measured, longest_sample=5000, most_tokens=8192)


def test_a_schedule_s_seconds_by_hand_and_the_capacity_that_takes_least() -> None:
    schedule = [MicroBatch((sample(0, 0, 4),)), MicroBatch((sample(1, 0, 8),))]
    seconds = pipeline_seconds(schedule, stages=2, multiple=1, seconds_of=float)
    assert seconds == pytest.approx((4 + 8) / 2 + 8 / 2)
    adapters = draw(2, adapters=4, batches=3)
    # a fixed price for each micro-batch wants large ones
    how, _ = choose_schedule(
        adapters,
        capacities=(64, 128, 512),
        settings=MicroBatchSettings(capacity=64, limits=QUICK),
        seconds_of=lambda found: pipeline_seconds(
            found, stages=1, multiple=1, seconds_of=lambda tokens: 100.0 + tokens
        ),
    )
    assert how.capacity == 512
    with pytest.raises(ValueError, match="longer than every capacity"):
        choose_schedule(adapters, capacities=(2,), settings=how, seconds_of=len)


def test_wrong_input_is_refused() -> None:
    adapters = draw(0, adapters=2, batches=1)
    with pytest.raises(ValueError, match="does not fit"):
        schedule_micro_batches(adapters, settings=MicroBatchSettings(capacity=1))
    with pytest.raises(ValueError, match="one group"):
        schedule_micro_batches(adapters, settings=MicroBatchSettings(capacity=100), groups=[(0,)])
    with pytest.raises(ValueError, match="at least 1"):
        MicroBatchSettings(capacity=100, stages=0)
    assert schedule_micro_batches([], settings=MicroBatchSettings(capacity=10)) == ()
