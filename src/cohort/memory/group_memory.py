"""What the ranks of a group hold of one model, and what their passes take: from above, before a weight is read.

A pipeline's stage holds some layers, and the activations of as many micro-batches as there are stages from it to the
last. A tensor parallel rank holds a shard of every layer and the whole residual stream of its passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.core.units import format_bytes
from cohort.machine.machine import free_memory_bytes
from cohort.memory.demand import Demand
from cohort.memory.pass_estimates import estimate_passes
from cohort.memory.plan import CONTEXT_BYTES, MemoryPlan
from cohort.memory.smallest_memory import limit_problem, weight_bytes
from cohort.models.config import DecoderConfig
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan
from cohort.ranks.tensor.base_shards import shard_config
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.scheduling.pipelines.pipeline_schedule import most_in_flight

__all__ = ["GroupMemory", "group_memory"]

# what communicators keep on each GPU
LINK_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GroupMemory:
    """What the fullest rank of a group holds.

    Attributes:
        weight_bytes: Of the base model.
        needs: What its passes take, estimated from above.
        layout: The adapted linears of the rank with the widest rank rows.
    """

    weight_bytes: int
    needs: MemoryNeeds
    layout: AdapterLayout

    def note(self, plan: RankGroupPlan, config: DecoderConfig) -> str:
        """Return one line for the user."""
        what = f"a shard of each of {config.num_layers} layers"
        if isinstance(plan, PipelineGroup):
            what = f"{' + '.join(str(len(plan.layers(stage))) for stage in range(plan.size))} layers, a stage each"
            what += " with a share of the loss head" * plan.shares_head
        return (
            f"strategy: {plan.name}; {plan.size} processes hold {what}, at most "
            f"{format_bytes(self.weight_bytes)} of the base model"
        )

    def plan(self, demand: Demand, *, num_gpus: int) -> MemoryPlan:
        """Return the memory of a run whose ranks hold this.

        Args:
            num_gpus: GPUs of this host that train; those of others are taken to be as free.

        Raises:
            InputError: the base model alone takes the whole limit.
        """
        task, machine, on_gpu = demand.task, demand.machine, demand.is_on_gpu
        limit = task.memory.limit
        if limit is not None and (problem := limit_problem(task, base_bytes=self.weight_bytes)) is not None:
            raise InputError(problem)
        free = machine.memory_bytes
        if on_gpu:
            free = (
                min(free_memory_bytes(torch.device("cuda", gpu)) for gpu in range(num_gpus))
                - CONTEXT_BYTES
                - LINK_BYTES
            )
        left = (free if limit is None else min(free, limit)) - self.weight_bytes
        machine = replace(machine, memory_bytes=max(0, left))
        needs = None if not on_gpu and limit is None else replace(self.needs, margin_share=task.memory.margin)
        return MemoryPlan(machine=machine, needs=needs, profile=None, limit_bytes=limit, base_bytes=self.weight_bytes)


def group_memory(plan: RankGroupPlan, demand: Demand) -> GroupMemory:
    """Return what the fullest rank of ``plan`` holds, from above, before a weight is read."""
    machine, config, dtype = demand.machine, demand.config, demand.dtype
    widest = max((plan.local_layout(demand.layout, rank) for rank in range(plan.size)), key=lambda own: own.width)
    table = config.vocab_size * config.hidden_size * dtype.itemsize
    if isinstance(plan, PipelineGroup):
        parts = [
            (
                _of_layers(config, plan.layers(stage)),
                most_in_flight(stage, num_stages=plan.size, shares_head=plan.shares_head),
            )
            for stage in range(plan.size)
        ]
        each = [(estimate_passes(part, dtype=dtype, device=machine.device), held) for part, held in parts]
        # a stage has the token table or the head, or both where all share it; of a tied model both are one
        ends = 0 if config.tie_word_embeddings or plan.shares_head else table
        weights = max(weight_bytes(part, machine) for part, _ in parts) - ends
        needs = MemoryNeeds(
            pass_bytes=lambda tokens: max(own.pass_bytes(tokens) * held for own, held in each),
            recomputed_bytes=lambda tokens: max(
                (own.recomputed_bytes or own.pass_bytes)(tokens) * held for own, held in each
            ),
            graph_bytes=_never,
        )
        return GroupMemory(weight_bytes=weights, needs=needs, layout=widest)
    local = shard_config(config, size=plan.size)
    weights = weight_bytes(local, machine)
    if not config.tie_word_embeddings:
        weights -= table - table // plan.size
    passes = estimate_passes(
        replace(local, vocab_size=math.ceil(config.vocab_size / plan.size)), dtype=dtype, device=machine.device
    )
    return GroupMemory(weight_bytes=weights, needs=passes, layout=widest)


def _of_layers(config: DecoderConfig, layers: range) -> DecoderConfig:
    """Return a model of some layers, with both of its ends."""
    windows = config.windows[layers.start : layers.stop]
    return replace(config, num_layers=len(layers), windows=windows)


def _never(tokens: int) -> float:
    """Return the bytes of a recorded pass: none is recorded."""
    return math.inf if tokens else 0.0
