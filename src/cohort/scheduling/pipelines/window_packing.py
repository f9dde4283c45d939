"""The micro-batches of a window: their size, their order and who shares the loss head, by what takes least time.

A greedy schedule is there at once. A solved one is made where there is time for it: with the greedy one's size of
micro-batches integer programs pack each batch anew, so that the last micro-batch of each is as empty as can be, which
samples of the next batch fill, and, where samples keep their order, so that micro-batches are equally long; without
an order a greedy way makes them nearly so (benchmarks/results/pipeline_microbatches.json). The simulator decides.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cohort.scheduling.pipelines.microbatch.choose_micro_batches import MicroBatchSettings, choose_schedule
from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.microbatch.records import AdapterBatches, MicroBatch
from cohort.scheduling.pipelines.pipeline_schedule import batch_distance
from cohort.scheduling.pipelines.simulation import simulate_pipeline

__all__ = ["StageShares", "WindowQuestion", "WindowSchedule", "greedy_schedule", "solved_schedule"]

# of the micro-batches of a window: some 50 ms of the host
MOST_SIMULATED = 128


@dataclass(frozen=True, kw_only=True)
class StageShares:
    """What each stage of a pipeline computes of a token, in the time of a layer.

    Attributes:
        layers: Layers of each stage.
        head_layers: The loss head; 0 where no stages may share it, so that the last one has it in any case.
        head_shares: The share of the head's rows of each stage, where they are divided.
    """

    layers: tuple[int, ...]
    head_layers: float = 0.0
    head_shares: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WindowQuestion:
    """What is to pass a pipeline in a window, and how long it takes.

    Attributes:
        adapters: Numbered by slot, with the lengths of their steps in it.
        token_budget: Most tokens of a micro-batch; a longer sample stands alone.
        stages: Of the pipeline.
        keeps_order: Whether each adapter's samples pass in their order, which its bits need on a CPU.
        flat_tokens: A pass of fewer tokens takes as long as one of this many.
    """

    adapters: tuple[AdapterBatches, ...]
    token_budget: int
    stages: StageShares
    keeps_order: bool
    flat_tokens: int


@dataclass(frozen=True, kw_only=True)
class WindowSchedule:
    """What passes the pipeline.

    Attributes:
        capacity: Most tokens of a micro-batch.
        seconds: Of its beginning, for each token, in the time of a token and layer.
        shares_head: Whether the stages share the loss head.
    """

    micro_batches: tuple[MicroBatch, ...]
    capacity: int
    seconds: float
    shares_head: bool


def greedy_schedule(question: WindowQuestion) -> WindowSchedule:
    """Return the schedule that needs no solver.

    The size of micro-batches, and whether the stages share the loss head, is what takes the least time by the
    simulator: small ones fill the pipeline sooner, large ones pay fewer launches. Micro-batches are as equally long as
    the order of samples allows; without one also first fit, whose batches are merged, is tried.
    """
    longest = max((length for adapter in question.adapters for batch in adapter.lengths for length in batch), default=1)
    most = max(question.token_budget, longest)
    capacities, size = {most}, max(question.flat_tokens, longest)
    while size < most:
        capacities.add(size)
        size *= 2
    best: WindowSchedule | None = None
    for shares_head in (True, False) if question.stages.head_layers > 0 else (False,):
        found = _chosen(question, sorted(capacities), shares_head=shares_head, is_level=True)
        if best is None or found.seconds < best.seconds:
            best = found
        # batches of few trials may be too near to each other for one more micro-batch in flight; else sharing wins
        if shares_head and found.micro_batches and all(each.samples for each in found.micro_batches):
            break
    assert best is not None, "a window without a shared head is always planned"
    if question.keeps_order or not question.adapters:
        return best
    merged = _chosen(question, [best.capacity], shares_head=best.shares_head, is_level=False)
    return min(best, merged, key=lambda found: found.seconds)


def solved_schedule(question: WindowQuestion, *, limits: PackingLimits | None = None) -> WindowSchedule:
    """Return the best of the greedy schedule and those of the integer programs; deterministic."""
    best = greedy_schedule(question)
    for is_level in (True, False) if question.keeps_order else (False,):
        found = _chosen(
            question,
            [best.capacity],
            shares_head=best.shares_head,
            is_level=is_level,
            limits=limits or PackingLimits(),
        )
        best = min(best, found, key=lambda each: each.seconds)
    return best


def _chosen(
    question: WindowQuestion,
    capacities: Sequence[int],
    *,
    shares_head: bool,
    is_level: bool,
    limits: PackingLimits | None = None,
) -> WindowSchedule:
    """Return the best schedule over ``capacities`` and groups of adapters, by a solver where ``limits`` are given."""
    stages = question.stages
    settings = MicroBatchSettings(
        capacity=max(capacities),
        stages=batch_distance(len(stages.layers), shares_head=shares_head),
        is_level=is_level,
        keeps_order=question.keeps_order,
        uses_solver=limits is not None,
    )
    if limits is not None:
        settings = replace(settings, limits=limits)
    seconds_of = functools.partial(
        _seconds_of_a_token, stages=stages, shares_head=shares_head, flat_tokens=question.flat_tokens
    )
    used, schedule = choose_schedule(question.adapters, capacities=capacities, settings=settings, seconds_of=seconds_of)
    return WindowSchedule(
        micro_batches=schedule, capacity=used.capacity, seconds=seconds_of(schedule), shares_head=shares_head
    )


def _seconds_of_a_token(
    schedule: Sequence[MicroBatch], *, stages: StageShares, shares_head: bool, flat_tokens: int
) -> float:
    """Return what the beginning of a window takes for each of its tokens, in the time of a token and layer."""
    schedule = schedule[:MOST_SIMULATED]
    tokens = max(1, sum(each.tokens(1) for each in schedule))
    # a no-op costs the wait alone
    seconds = [float(max(each.tokens(1), flat_tokens)) if each.samples else 0.0 for each in schedule]
    forward, backward = ([[count * each for each in seconds] for count in stages.layers] for _ in range(2))
    # both products of the head come at once
    head = 2 * stages.head_layers
    if not shares_head:
        forward[-1] = [(stages.layers[-1] + head) * each for each in seconds]
        return simulate_pipeline(forward, backward).seconds / tokens
    shares = [[head * share * each for each in seconds] for share in stages.head_shares]
    return simulate_pipeline(forward, backward, head_seconds=shares).seconds / tokens
