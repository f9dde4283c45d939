"""Which samples pass a pipeline together in a window of steps: planned alike on every stage, before the first pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.ranks.pipeline.pipeline_window import PipelineMicroBatch, batches_of, pipeline_window
from cohort.ranks.rank_group import PipelineGroup
from cohort.ranks.step_window import FLOPS_PER_SECOND
from cohort.scheduling.cost.analytic import HOST_LAYER_SECONDS
from cohort.scheduling.pipelines.window_packing import (
    StageShares,
    WindowQuestion,
    WindowSchedule,
    greedy_schedule,
)
from cohort.training.step_samples import Resident

__all__ = ["PlannedWindow", "flat_tokens", "plan_window", "window_question"]

# a pass of a CPU with fewer tokens takes as long as one of this many
CPU_FLAT_TOKENS = 32


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
    schedule: WindowSchedule | None = None,
) -> PlannedWindow:
    """Return the micro-batches of the next ``quotas`` steps of each resident, by trial id.

    On a CPU a trial's samples stay in their order, which its bits need.

    Args:
        token_budget: Most tokens of a micro-batch; a longer sample stands alone.
        flat_tokens: A pass of fewer tokens takes as long as one of this many.
        schedule: What was planned for this window ahead; None plans it now, greedily.

    Raises:
        ValueError: as of :func:`~cohort.ranks.pipeline.pipeline_window.batches_of`.
    """
    if schedule is None:
        question = window_question(
            residents, quotas, token_budget=token_budget, group=group, device_type=device_type, flat_tokens=flat_tokens
        )
        schedule = greedy_schedule(question)
    own = {resident.slot: resident for resident in residents if quotas.get(resident.spec.trial_id, 0) > 0}
    return PlannedWindow(micro_batches=pipeline_window(schedule.micro_batches, own), shares_head=schedule.shares_head)


def window_question(
    residents: Sequence[Resident],
    quotas: Mapping[int, int],
    *,
    token_budget: int,
    group: PipelineGroup,
    device_type: str,
    flat_tokens: int = CPU_FLAT_TOKENS,
) -> WindowQuestion:
    """Return what is to pass in a window, as its scheduler asks for it; arguments are those of :func:`plan_window`.

    Raises:
        ValueError: as of :func:`~cohort.ranks.pipeline.pipeline_window.batches_of`.
    """
    counts = {resident.spec.trial_id: quotas.get(resident.spec.trial_id, 0) for resident in residents}
    return WindowQuestion(
        adapters=tuple(
            batches_of(resident, num_steps=counts[resident.spec.trial_id])
            for resident in residents
            if counts[resident.spec.trial_id] > 0
        ),
        token_budget=token_budget,
        stages=StageShares(
            layers=tuple(len(group.layers(stage)) for stage in range(group.size)),
            head_layers=group.head_layers,
            head_shares=group.head_shares if group.shares_head else (),
        ),
        keeps_order=device_type == "cpu",
        flat_tokens=flat_tokens,
    )


def flat_tokens(config: DecoderConfig, *, device_type: str) -> int:
    """Return up to how many tokens a pass takes as long as with fewer: on a GPU, until products hide the launches."""
    if device_type == "cpu":
        return CPU_FLAT_TOKENS
    # forward, and the gradient of the stream
    flops_of_a_layer = 2 * count_model(config).linear_flops_per_token / config.num_layers
    return max(1, round(HOST_LAYER_SECONDS * FLOPS_PER_SECOND[device_type] / flops_of_a_layer))
