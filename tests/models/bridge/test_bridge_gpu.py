"""Bridged models on a GPU, where a stream is one row: the numbers of a CPU, which computes each sequence by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.adapters.bank import AdapterBank
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.weights import load_decoder
from cohort.serving.generate import GenerateRequest, generate
from cohort.training.executor import Executor
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import executor_of, rows_of, spec_of

pytestmark = pytest.mark.gpu

# Fused projections, transposed linears, windows and soft caps, sinks, experts, values narrower than keys, recurrence.
NAMES = ("gpt_neox", "gpt2", "gemma4_text", "gpt_oss", "olmoe", "deepseek_v3", "qwen3_5_text", "lfm2")


def trained(folder: Path, device: str, *, dtype: str = "float32", neighbour: bool = False) -> tuple[list[float], Any]:
    decoder, rows, spec = load_decoder(folder, dtype=dtype, device=device), rows_of(12), spec_of()
    executor: Executor = executor_of(decoder, rows, device=device)
    if neighbour:
        executor.load(replace(spec, trial_id=1, seed=5, learning_rate=1e6, adapter=replace(spec.adapter, r=16)))
    executor.load(spec)
    losses = []
    for _ in range(spec.num_steps):
        losses.append({event.trial_id: event.loss for event in executor.step()}[0])
    return losses, executor.weights(0).cpu()


@pytest.mark.parametrize("name", NAMES)
def test_training_gives_the_losses_of_a_cpu(tmp_path: Path, name: str) -> None:
    folder = save_tiny(name, tmp_path)
    expected, _ = trained(folder, "cpu")
    found, _ = trained(folder, "cuda")
    # float32 sums in another order, five steps of AdamW on top
    assert found == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("name", ["gpt_neox", "olmoe", "qwen3_5_text"])
def test_a_diverging_neighbour_changes_nothing_that_a_sum_in_another_order_would_not(tmp_path: Path, name: str) -> None:
    folder = save_tiny(name, tmp_path)
    alone, _ = trained(folder, "cuda")
    beside, _ = trained(folder, "cuda", neighbour=True)
    assert beside == pytest.approx(alone, rel=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_proved_and_trains(tmp_path: Path, name: str) -> None:
    losses, _ = trained(save_tiny(name, tmp_path), "cuda", dtype="bfloat16")
    assert all(torch.isfinite(torch.tensor(losses)))


@pytest.mark.parametrize("name", ["gemma4_text", "gpt_oss", "qwen3_5_text", "deepseek_v3"])
def test_answers_are_those_of_a_cpu(tmp_path: Path, name: str) -> None:
    folder = save_tiny(name, tmp_path)
    requests = [GenerateRequest(prompt_tokens=tuple(range(5, 5 + n)), max_new_tokens=6) for n in (3, 17, 30)]
    on_cpu, on_gpu = (
        generate(load_decoder(folder, dtype="float32", device=device), requests, stop_ids=())
        for device in ("cpu", "cuda")
    )
    assert on_gpu == on_cpu


def test_an_adapter_answers_on_a_gpu(tmp_path: Path) -> None:
    decoder = load_decoder(save_tiny("gpt_neox", tmp_path), dtype="float32", device="cuda")
    executor: Executor = executor_of(decoder, rows_of(4), device="cuda")
    slot = executor.load(spec_of())
    bank: AdapterBank = executor.bank
    request = GenerateRequest(prompt_tokens=(5, 6, 7), max_new_tokens=4, slot=slot)
    found = generate(decoder, [request], lora_for=bank.context, num_slots=bank.num_slots, stop_ids=())
    # B begins as zeros
    assert found == generate(decoder, [replace(request, slot=None)], stop_ids=())


def test_what_leaks_in_a_stream_is_computed_sequence_by_sequence_on_a_gpu(tmp_path: Path) -> None:
    folder = save_tiny("bamba", tmp_path)
    for device in ("cuda", "cpu"):
        decoder = load_decoder(folder, device=device)
        assert isinstance(decoder, BridgedDecoder)
        assert not decoder.is_packed
