"""Which samples pass a pipeline together in a window of steps: planned alike on every stage, before the first pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.parallel.pipeline.pipeline_stage import PipelineMicroBatch
from cohort.parallel.pipeline.pipeline_window import batches_of, pipeline_window
from cohort.scheduling.microbatch.schedule import MicroBatchSettings, choose_schedule
from cohort.training.step_samples import Resident

__all__ = ["plan_window"]

# a pass of fewer tokens takes as long as one of so many: launches on a GPU, the sides of products on a CPU
FLAT_TOKENS = {"cuda": 1024, "cpu": 32}


def plan_window(
    residents: Sequence[Resident],
    quotas: Mapping[int, int],
    *,
    token_budget: int,
    num_stages: int,
    device_type: str,
) -> tuple[PipelineMicroBatch, ...]:
    """Return the micro-batches of the next ``quotas`` steps of each resident, by trial id.

    Their size is what takes the least time by the bubble lemma and equal stages: small ones fill the pipeline sooner,
    large ones pay fewer launches. On a CPU a trial's samples stay in their order, which its bits need; on a GPU they
    are packed into equally long micro-batches, which idle least.

    Args:
        token_budget: Most tokens of a micro-batch; a longer sample stands alone.

    Raises:
        ValueError: as of :func:`~cohort.parallel.pipeline.pipeline_window.batches_of`.
    """
    own = [resident for resident in residents if quotas.get(resident.spec.trial_id, 0) > 0]
    adapters = [batches_of(resident, num_steps=quotas[resident.spec.trial_id]) for resident in own]
    longest = max((length for adapter in adapters for batch in adapter.lengths for length in batch), default=1)
    flat, most = FLAT_TOKENS[device_type], max(token_budget, longest)
    capacities, size = {most}, max(flat, longest)
    while size < most:
        capacities.add(size)
        size *= 2
    on_cpu = device_type == "cpu"
    settings = MicroBatchSettings(capacity=most, stages=num_stages, is_level=not on_cpu, keeps_order=on_cpu)
    # no-ops cost nothing but the wait that the simulator shows: here they count as the shortest pass
    _, schedule = choose_schedule(
        adapters, capacities=sorted(capacities), settings=settings, seconds_of=lambda tokens: float(max(tokens, flat))
    )
    return pipeline_window(schedule, {resident.slot: resident for resident in own})
