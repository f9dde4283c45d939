"""Where a model will be: what was settled, with what each rank holds and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.memory import strategy_options, weight_placement
from cohort.memory.demand import Demand
from cohort.memory.model_place import ModelPlace, choose_model_place
from cohort.models.checkpoint_layout import linear_shapes
from cohort.ranks.rank_group import PipelineGroup, TensorGroup
from cohort.scheduling.cost.hardware import KNOWN_GPUS
from tests.memory.test_budget import grid
from tests.memory.test_host_streaming import GIB, H200, LLAMA_70B, task_of
from tests.training.small_models import random_rows


@pytest.fixture(autouse=True)
def links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_placement, "can_share", lambda *_, **__: None)
    monkeypatch.setattr(strategy_options, "hardware_of", lambda _: KNOWN_GPUS["H100"])


def place_of(strategy: str, *, num_ranks: int = 4, num_hosts: int = 1) -> ModelPlace:
    demand = Demand(
        task=task_of().model_copy(update={"strategy": strategy}),
        machine=replace(H200, memory_bytes=79 * GIB),
        num_ranks=num_ranks,
        config=LLAMA_70B,
        layout=AdapterLayout(linear_shapes(LLAMA_70B)),
        specs=[replace(grid()[0], trial_id=number) for number in range(2)],
        rows=random_rows(4),
    )
    return choose_model_place(demand, num_hosts=num_hosts)


def test_ranks_hold_a_model_together_where_a_task_says_so() -> None:
    pipeline, shards = place_of("pipeline"), place_of("tensor")
    assert isinstance(pipeline.group, PipelineGroup)
    assert pipeline.held is not None
    assert pipeline.device_bytes == pipeline.held.weight_bytes < 45 * GIB
    assert shards.group == TensorGroup(size=4)
    assert shards.notes[0].startswith("strategy: tensor; 4 processes hold a shard of each of 80 layers")


def test_weights_are_placed_where_nothing_is_held_together() -> None:
    divided = place_of("adapter_parallel")
    assert divided.group is None
    assert divided.weights.are_divided
    alone = place_of("tensor", num_ranks=1)
    assert (alone.group, alone.notes[0]) == (
        None,
        "strategy: one GPU divides nothing, so tensor has no effect (unless torchrun starts several processes)",
    )
    # what passes between hosts is not predicted: there a group is for those who ask for one
    assert place_of("auto", num_hosts=2).group is None
    assert place_of("pipeline", num_hosts=2).group is not None


def test_what_auto_chose_is_told_first() -> None:
    place = place_of("auto")
    assert place.notes[0].startswith("strategy: auto is ")
    assert "predicted for a step of all trials" in place.notes[0]
    with pytest.raises(InputError, match="5 ranks"):
        place_of("tensor", num_ranks=5)
    assert torch.device("cuda") == H200.device
