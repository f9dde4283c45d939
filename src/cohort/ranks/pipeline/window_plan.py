"""Which samples pass a pipeline together in a window of steps: planned alike on every stage, before the first pass."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.ranks.pipeline.pipeline_window import PipelineMicroBatch, batches_of, pipeline_window
from cohort.ranks.rank_group import PipelineGroup
from cohort.ranks.step_window import FLOPS_PER_SECOND
from cohort.scheduling.cost.analytic import HOST_LAYER_SECONDS
from cohort.scheduling.pipelines.microbatch.records import MicroBatch
from cohort.scheduling.pipelines.microbatch.schedule import MicroBatchSettings, choose_schedule
from cohort.scheduling.pipelines.pass_order import batch_distance
from cohort.scheduling.pipelines.simulation import simulate_pipeline
from cohort.training.step_samples import Resident

__all__ = ["PlannedWindow", "flat_tokens", "plan_window"]

# a pass of a CPU with fewer tokens takes as long as one of this many
CPU_FLAT_TOKENS = 32
# of the micro-batches of a window: some 50 ms of the host
MOST_SIMULATED = 128


@dataclass(frozen=True, kw_only=True)
class PlannedWindow:
    """What passes the pipeline in a window.

    Attributes:
        shares_head: Whether the stages share the loss head in it.
    """

    micro_batches: tuple[PipelineMicroBatch, ...]
    shares_head: bool


def plan_window(
    residents: Sequence[Resident],
    quotas: Mapping[int, int],
    *,
    token_budget: int,
    group: PipelineGroup,
    device_type: str,
    flat_tokens: int = CPU_FLAT_TOKENS,
) -> PlannedWindow:
    """Return the micro-batches of the next ``quotas`` steps of each resident, by trial id.

    Their size, and whether the stages share the loss head, is what takes the least time by the simulator: small ones
    fill the pipeline sooner, large ones pay fewer launches. On a CPU a trial's samples stay in their order, which its
    bits need; on a GPU they are packed into equally long micro-batches, which idle least.

    Args:
        token_budget: Most tokens of a micro-batch; a longer sample stands alone.
        flat_tokens: A pass of fewer tokens takes as long as one of this many.

    Raises:
        ValueError: as of :func:`~cohort.ranks.pipeline.pipeline_window.batches_of`.
    """
    own = [resident for resident in residents if quotas.get(resident.spec.trial_id, 0) > 0]
    adapters = [batches_of(resident, num_steps=quotas[resident.spec.trial_id]) for resident in own]
    longest = max((length for adapter in adapters for batch in adapter.lengths for length in batch), default=1)
    most = max(token_budget, longest)
    capacities, size = {most}, max(flat_tokens, longest)
    while size < most:
        capacities.add(size)
        size *= 2
    on_cpu = device_type == "cpu"

    best: tuple[float, tuple[MicroBatch, ...], bool] | None = None
    for shares_head in (True, False) if group.shares_head else (False,):
        distance = batch_distance(group.size, shares_head=shares_head)
        seconds_of = functools.partial(
            _seconds_of_a_token, group=group, shares_head=shares_head, flat_tokens=flat_tokens
        )
        settings = MicroBatchSettings(capacity=most, stages=distance, is_level=not on_cpu, keeps_order=on_cpu)
        _, schedule = choose_schedule(adapters, capacities=sorted(capacities), settings=settings, seconds_of=seconds_of)
        seconds = seconds_of(schedule)
        if best is None or seconds < best[0]:
            best = seconds, schedule, shares_head
        # batches of few trials may be too near to each other for one more micro-batch in flight; else sharing wins
        if shares_head and schedule and all(each.samples for each in schedule):
            break
    assert best is not None, "a window without a shared head is always planned"
    micro_batches = pipeline_window(best[1], {resident.slot: resident for resident in own})
    return PlannedWindow(micro_batches=micro_batches, shares_head=best[2])


def _seconds_of_a_token(
    schedule: Sequence[MicroBatch], *, group: PipelineGroup, shares_head: bool, flat_tokens: int
) -> float:
    """Return what the beginning of a window takes for each of its tokens, in the time of a token and layer."""
    schedule = schedule[:MOST_SIMULATED]
    tokens = max(1, sum(each.tokens(1) for each in schedule))
    # a no-op costs the wait alone
    seconds = [float(max(each.tokens(1), flat_tokens)) if each.samples else 0.0 for each in schedule]
    layers = [len(group.layers(stage)) for stage in range(group.size)]
    forward, backward = ([[count * each for each in seconds] for count in layers] for _ in range(2))
    # both products of the head come at once
    head = 2 * group.head_layers
    if not shares_head:
        forward[-1] = [(layers[-1] + head) * each for each in seconds]
        return simulate_pipeline(forward, backward).seconds / tokens
    shares = [[head * share * each for each in seconds] for share in group.head_shares]
    return simulate_pipeline(forward, backward, head_seconds=shares).seconds / tokens


def flat_tokens(config: DecoderConfig, *, device_type: str) -> int:
    """Return up to how many tokens a pass takes as long as with fewer: on a GPU, until products hide the launches."""
    if device_type == "cpu":
        return CPU_FLAT_TOKENS
    # forward, and the gradient of the stream
    flops_of_a_layer = 2 * count_model(config).linear_flops_per_token / config.num_layers
    return max(1, round(HOST_LAYER_SECONDS * FLOPS_PER_SECOND[device_type] / flops_of_a_layer))
