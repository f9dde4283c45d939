"""Which samples pass a pipeline together in a window of steps: planned alike on every stage, before the first pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.parallel.pipeline.pipeline_stage import PipelineMicroBatch
from cohort.parallel.pipeline.pipeline_window import batches_of, pipeline_window
from cohort.parallel.step_window import FLOPS_PER_SECOND
from cohort.pipelining.microbatch.schedule import MicroBatchSettings, choose_schedule
from cohort.scheduling.cost.analytic import HOST_LAYER_SECONDS
from cohort.training.step_samples import Resident

__all__ = ["flat_tokens", "plan_window"]

# a pass of a CPU with fewer tokens takes as long as one of this many
CPU_FLAT_TOKENS = 32


def plan_window(
    residents: Sequence[Resident],
    quotas: Mapping[int, int],
    *,
    token_budget: int,
    num_stages: int,
    device_type: str,
    flat_tokens: int = CPU_FLAT_TOKENS,
) -> tuple[PipelineMicroBatch, ...]:
    """Return the micro-batches of the next ``quotas`` steps of each resident, by trial id.

    Their size is what takes the least time by the bubble lemma and equal stages: small ones fill the pipeline sooner,
    large ones pay fewer launches. On a CPU a trial's samples stay in their order, which its bits need; on a GPU they
    are packed into equally long micro-batches, which idle least.

    Args:
        token_budget: Most tokens of a micro-batch; a longer sample stands alone.
        flat_tokens: A pass of fewer tokens takes as long as one of this many.

    Raises:
        ValueError: as of :func:`~cohort.parallel.pipeline.pipeline_window.batches_of`.
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
    settings = MicroBatchSettings(capacity=most, stages=num_stages, is_level=not on_cpu, keeps_order=on_cpu)
    # no-ops cost nothing but the wait that the simulator shows: here they count as the shortest pass
    _, schedule = choose_schedule(
        adapters,
        capacities=sorted(capacities),
        settings=settings,
        seconds_of=lambda tokens: float(max(tokens, flat_tokens)),
    )
    return pipeline_window(schedule, {resident.slot: resident for resident in own})


def flat_tokens(config: DecoderConfig, *, device_type: str) -> int:
    """Return up to how many tokens a pass takes as long as with fewer: on a GPU, until products hide the launches."""
    if device_type == "cpu":
        return CPU_FLAT_TOKENS
    # forward, and the gradient of the stream
    flops_of_a_layer = 2 * count_model(config).linear_flops_per_token / config.num_layers
    return max(1, round(HOST_LAYER_SECONDS * FLOPS_PER_SECOND[device_type] / flops_of_a_layer))
