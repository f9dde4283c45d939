"""How many layers are streamed from host memory, by what fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.data.tokenised import TokenisedRows
from cohort.machine.machine import Machine
from cohort.memory.demand import Demand
from cohort.memory.host_streaming import (
    StreamedLayers,
    choose_streamed_layers,
    layers_for_generation,
    least_weight_bytes,
)
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig, RotaryConfig
from cohort.tasks.loading import task_from_mapping
from cohort.tasks.task_file import TaskFile
from tests.memory.test_budget import grid
from tests.training.small_models import random_rows

GIB = 1 << 30
H200 = Machine(
    device=torch.device("cuda"),
    device_name="NVIDIA H200",
    dtype="bfloat16",
    threads=1,
    memory_bytes=139 * GIB,
    num_gpus=1,
)
LLAMA_70B = DecoderConfig(
    family="llama",
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=8192,
    intermediate_size=28672,
    num_layers=80,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rotary=RotaryConfig(rope_type="default", inverse_frequencies=(1.0,) * 64),
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    windows=(None,) * 80,
)


def task_of(**memory: object) -> TaskFile:
    return task_from_mapping(
        {"model_name_or_path": "org/model", "dataset": {"train": "org/rows"}, "memory": memory},
        base_directory=Path("/"),
    )


def chosen(
    task: TaskFile,
    machine: Machine = H200,
    *,
    config: DecoderConfig = LLAMA_70B,
    host_bytes: int | None = None,
    rows: TokenisedRows | None = None,
) -> StreamedLayers:
    specs = [spec for spec in grid() if spec.adapter.r == 16][:2]
    layout = AdapterLayout(linear_shapes(config))
    rows = rows or random_rows(4, longest=50)
    demand = Demand(task=task, machine=machine, config=config, layout=layout, specs=specs, rows=rows)
    return choose_streamed_layers(demand, host_bytes=host_bytes)


def test_a_model_that_fits_is_resident() -> None:
    small = replace(
        LLAMA_70B, num_layers=32, windows=(None,) * 32, hidden_size=4096, intermediate_size=14336, num_heads=32
    )
    found = chosen(task_of(), config=small)
    assert (found.count, found.note, found.layers) == (0, None, ())
    assert found.device_bytes == found.base_bytes


def test_a_larger_model_streams_no_more_layers_than_it_takes() -> None:
    found = chosen(task_of())
    assert 10 < found.count < 40
    assert found.device_bytes < 0.95 * H200.memory_bytes < found.base_bytes + 8 * GIB
    more = chosen(task_of(), replace(H200, memory_bytes=79 * GIB))
    assert found.count < more.count <= 80
    limited = chosen(task_of(limit="79GiB"))
    assert limited.count == more.count
    assert found.note is not None
    assert f"{found.count} of 80 layers" in found.note
    assert len(set(found.layers)) == found.count


def test_a_gpu_that_is_too_small_for_any_number() -> None:
    tiny = replace(H200, memory_bytes=8 * GIB)
    assert chosen(task_of(), tiny).count == 0


def test_what_a_task_asks_for() -> None:
    assert chosen(task_of(host_streamed_layers=7)).count == 7
    assert chosen(task_of(host_streamed_layers=0)).count == 0
    with pytest.raises(InputError, match="3 to 80"):
        chosen(task_of(host_streamed_layers=81))
    with pytest.raises(InputError, match="the host has free"):
        chosen(task_of(host_streamed_layers=40), host_bytes=GIB)
    with pytest.raises(InputError, match="the host has free"):
        chosen(task_of(), host_bytes=GIB)


def test_a_cpu_streams_only_what_it_is_told_to_and_saves_nothing() -> None:
    cpu = replace(H200, device=torch.device("cpu"), dtype="float32", memory_bytes=GIB)
    assert chosen(task_of(), cpu).count == 0
    told = chosen(task_of(host_streamed_layers=40), cpu)
    assert told.device_bytes == told.base_bytes + 2 * told.layer_bytes
    assert least_weight_bytes(task_of(), LLAMA_70B, cpu) == told.base_bytes


def test_the_least_that_a_gpu_holds() -> None:
    least = least_weight_bytes(task_of(), LLAMA_70B, H200)
    assert least == replace(chosen(task_of()), count=80).device_bytes
    assert least_weight_bytes(task_of(host_streamed_layers=0), LLAMA_70B, H200) > 131 * GIB


def test_answers_of_a_model_that_does_not_fit() -> None:
    found = layers_for_generation(LLAMA_70B, H200)
    assert found.device_bytes <= 0.76 * H200.memory_bytes
    assert layers_for_generation(LLAMA_70B, replace(H200, memory_bytes=180 * GIB)).count == 0


@pytest.mark.parametrize("value", [1, 2, -1, True, "all", 2.5])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(InputError) as caught:
        task_of(host_streamed_layers=value)
    (problem,) = caught.value.problems
    assert problem.allowed == "auto, 0 (none), or a whole number of at least 3, at most 100,000"
