"""Where weights are, by what fits and what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.machine.machine import Machine
from cohort.memory import weight_placement
from cohort.memory.demand import Demand
from cohort.memory.weight_placement import WeightPlacement, choose_placement
from cohort.models.checkpoint_layout import linear_shapes
from cohort.tasks.task_file import TaskFile
from tests.memory.test_budget import grid
from tests.memory.test_host_streaming import GIB, H200, LLAMA_70B, task_of
from tests.training.small_models import random_rows

H100 = replace(H200, memory_bytes=79 * GIB)


@pytest.fixture(autouse=True)
def links(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why GPUs cannot read each other's memory; empty where they can."""
    reasons: list[str] = []
    monkeypatch.setattr(weight_placement, "can_share", lambda *_, **__: reasons[0] if reasons else None)
    return reasons


def placed(
    task: TaskFile, machine: Machine = H200, *, num_ranks: int = 4, host_bytes: int | None = None
) -> WeightPlacement:
    demand = Demand(
        task=task,
        machine=machine,
        num_ranks=num_ranks,
        config=LLAMA_70B,
        layout=AdapterLayout(linear_shapes(LLAMA_70B)),
        specs=[spec for spec in grid() if spec.adapter.r == 16][:2],
        rows=random_rows(4),
    )
    return choose_placement(demand, host_bytes=host_bytes)


def with_strategy(strategy: str, **memory: object) -> TaskFile:
    return task_of(**memory).model_copy(update={"strategy": strategy})


def test_a_model_that_fits_is_whole_on_every_gpu_unless_the_task_divides_it() -> None:
    large = replace(H200, memory_bytes=180 * GIB)
    whole = placed(with_strategy("auto"), large)
    assert (whole.weights.layers, whole.note) == ((), None)
    divided = placed(with_strategy("adapter_parallel"), large)
    assert divided.weights.are_divided
    assert len(divided.weights.layers) == 80
    assert divided.device_bytes < whole.device_bytes / 3


@pytest.mark.parametrize("machine", [H200, H100])
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_no_more_layers_are_divided_than_do_not_fit(machine: Machine, num_ranks: int) -> None:
    found = placed(with_strategy("auto"), machine, num_ranks=num_ranks)
    assert found.weights.are_divided
    streamed = placed(with_strategy("replicas"), machine, num_ranks=num_ranks)
    assert not streamed.weights.are_divided
    # a divided layer frees a part of its bytes, a streamed one all
    assert len(found.weights.layers) >= len(streamed.weights.layers)
    if len(found.weights.layers) < 80:
        assert found.device_bytes <= streamed.device_bytes
    assert found.note is not None
    assert f"over {num_ranks} processes" in found.note


def test_gpus_that_cannot_read_each_other_stream_from_the_host_and_say_so(links: list[str]) -> None:
    links.append("GPU 0 cannot read the memory of GPU 2")
    found = placed(with_strategy("auto"))
    assert not found.weights.are_divided
    assert found.weights.layers
    assert found.note is not None
    assert found.note.startswith("strategy: GPU 0 cannot read the memory of GPU 2, so layers are streamed")
    assert found.seconds_per_pass > 0
    with pytest.raises(InputError, match="the host has free"):
        placed(with_strategy("auto"), host_bytes=4 * GIB)


def test_divided_layers_need_no_host_memory() -> None:
    assert placed(with_strategy("auto"), host_bytes=GIB).weights.are_divided


def test_a_cpu_divides_only_what_it_is_told_to() -> None:
    cpu = replace(H200, device=torch.device("cpu"), dtype="float32", num_gpus=0)
    assert placed(with_strategy("auto"), cpu).weights.layers == ()
    assert placed(with_strategy("adapter_parallel"), cpu).weights.are_divided


def test_a_number_of_streamed_layers_is_kept(links: list[str]) -> None:
    found = placed(with_strategy("auto", host_streamed_layers=30))
    assert (len(found.weights.layers), found.weights.are_divided) == (30, False)
    with pytest.raises(InputError, match="adapter_parallel"):
        placed(with_strategy("adapter_parallel", host_streamed_layers=30))
