"""Which tasks ranks can train together, and where a model is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.core.errors import InputError
from cohort.memory.demand import Demand
from cohort.memory.rank_groups import choose_group, pipeline_group
from cohort.models.checkpoint_layout import linear_shapes
from cohort.ranks.rank_group import TensorGroup
from cohort.tasks.sections.objective_section import parse_objective
from cohort.tasks.task_file import TaskFile
from cohort.training.objectives.kinds.kto import KahnemanTverskyOptimization
from tests.memory.test_budget import grid
from tests.memory.test_host_streaming import H200, LLAMA_70B, task_of
from tests.training.small_models import random_rows

SPEC = grid()[0]
LINEARS = linear_shapes(LLAMA_70B)


def demand_of(**given: Any) -> Demand:
    plain: dict[str, Any] = {"task": task_of(), "machine": H200, "layout": AdapterLayout(LINEARS), "specs": [SPEC]}
    return Demand(config=LLAMA_70B, rows=random_rows(4), **(plain | given))


def group_of(strategy: str, *, num_ranks: int = 4, task: TaskFile | None = None, **spec: Any) -> Any:
    demand = demand_of(task=task or task_of(), num_ranks=num_ranks, specs=[replace(SPEC, **spec)])
    return choose_group(demand, strategy)


def with_reference_adapter() -> TaskFile:
    task = task_of()
    return task.model_copy(update={"objective": task.objective.model_copy(update={"reference_adapter": "one"})})


def with_kto() -> TaskFile:
    return task_of().model_copy(update={"objective": parse_objective("kto")})


def test_layers_are_cut_so_that_the_head_counts() -> None:
    assert group_of("tensor") == TensorGroup(size=4)
    plan = group_of("pipeline")
    assert plan == pipeline_group(LLAMA_70B, num_stages=4)
    sizes = [len(plan.layers(stage)) for stage in range(4)]
    assert sum(sizes) == 80
    assert sizes[-1] <= min(sizes[:-1])
    assert max(sizes) - min(sizes) <= 2


@pytest.mark.parametrize(
    ("strategy", "given", "words"),
    [
        ("tensor", {"num_ranks": 3}, "3 ranks for a model with 64 attention heads"),
        ("pipeline", {"num_ranks": 81}, "81 stages for a model with 80 layers"),
        ("tensor", {"adapter": replace(SPEC.adapter, use_dora=True)}, "DoRA"),
        ("tensor", {"adapter": replace(SPEC.adapter, use_bdlora=BlockDiagonal(nblocks=2))}, "training 2 blocks on 4"),
        ("tensor", {"task": with_reference_adapter()}, "have no passes for another adapter"),
        ("pipeline", {"task": with_kto(), "objective": KahnemanTverskyOptimization()}, "kto with strategy: pipeline"),
        ("pipeline", {"task": task_of(host_streamed_layers=9)}, "9 with strategy: pipeline"),
    ],
)
def test_what_does_not_work_is_refused(strategy: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        group_of(strategy, **given)


def test_quantised_weights_and_stages_without_adapters_are_refused() -> None:
    machine = replace(H200, quantization="nf4")
    layout = AdapterLayout({name: shape for name, shape in LINEARS.items() if "layers.79." in name})
    demand = demand_of(machine=machine, num_ranks=2, layout=layout)
    with pytest.raises(InputError, match="nf4 with strategy: tensor"):
        choose_group(demand, "tensor")
    with pytest.raises(InputError, match="no adapted linear in layers 0 to"):
        choose_group(demand, "pipeline")
