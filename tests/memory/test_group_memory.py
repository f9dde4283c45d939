"""What the fullest rank of a group holds, from above."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.machine.machine import Machine
from cohort.memory import group_memory as module
from cohort.memory.demand import Demand
from cohort.memory.group_memory import GroupMemory, group_memory
from cohort.memory.rank_groups import pipeline_group
from cohort.memory.smallest_memory import weight_bytes
from cohort.models.checkpoint_layout import linear_shapes
from cohort.ranks.rank_group import PipelineGroup, RankGroupPlan, TensorGroup
from tests.memory.test_budget import grid
from tests.memory.test_host_streaming import GIB, H200, LLAMA_70B, task_of
from tests.training.small_models import random_rows

LAYOUT = AdapterLayout(linear_shapes(LLAMA_70B))


def held_by(plan: RankGroupPlan) -> GroupMemory:
    return group_memory(plan, demand_of(H200))


def demand_of(machine: Machine, **memory: object) -> Demand:
    return Demand(
        task=task_of(**memory),
        machine=machine,
        config=LLAMA_70B,
        layout=LAYOUT,
        specs=grid()[:1],
        rows=random_rows(4),
    )


def test_each_rank_holds_its_part_of_the_model() -> None:
    whole = weight_bytes(LLAMA_70B, H200)
    for plan in (TensorGroup(size=4), pipeline_group(LLAMA_70B, num_stages=4)):
        held = held_by(plan)
        # the ends are whole on some rank, both of them where stages share the head
        assert whole / 4 <= held.weight_bytes <= 1.09 * whole / 4
        # of plain LoRA a shard has one factor of each linear whole
        assert LAYOUT.width / 4 <= held.layout.width < 0.55 * LAYOUT.width
        assert "at most 3" in held.note(plan, LLAMA_70B)
        # shards record small passes, stages none
        assert (held.needs.graph_bytes(1) == float("inf")) == (plan.name == "pipeline")
        assert held.needs.graph_bytes(0) == 0


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    one, four = held_by(PipelineGroup(cuts=(0, 80))), held_by(PipelineGroup(cuts=(0, 20, 40, 60, 80)))
    # a quarter of the layers, four micro-batches
    assert four.needs.pass_bytes(4096) == pytest.approx(one.needs.pass_bytes(4096), rel=0.2)
    shard = held_by(TensorGroup(size=4))
    assert shard.needs.pass_bytes(4096) < one.needs.pass_bytes(4096)


def test_memory_is_what_the_weights_leave_of_the_fullest_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {0: 100 * GIB, 1: 80 * GIB}
    monkeypatch.setattr(module, "free_memory_bytes", lambda device: free[device.index])
    held = held_by(PipelineGroup(cuts=(0, 40, 80)))
    plan = held.plan(demand_of(H200), num_gpus=2)
    assert 80 * GIB - held.weight_bytes - 3 * GIB < plan.machine.memory_bytes < 80 * GIB - held.weight_bytes
    cpu = replace(H200, device=torch.device("cpu"))
    assert held.plan(demand_of(cpu), num_gpus=2).needs is None
    with pytest.raises(InputError, match="limit"):
        held.plan(demand_of(cpu, limit=GIB), num_gpus=2)
