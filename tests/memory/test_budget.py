"""Sizes from memory: state and passes fit the card together, for any card, model and grid."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.core.memory_records import MARGIN_SHARE
from cohort.core.numerics import Numerics
from cohort.machine.machine import Machine
from cohort.memory.budget import GPU_TOKENS, GRAPH_SHARE, SPARE_TRIALS, Sizes, choose_sizes
from cohort.memory.pass_estimates import LOSS_HEAD_BYTES, estimated_needs
from cohort.memory.size_inputs import SizeInputs, SizeRequest, rank_row_bytes
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS
from cohort.training.trial import TrialSpec

GIB = 1 << 30
# Llama-3.1-8B: one rank row has 2,621,440 entries; a token keeps some 5 MB
LAYOUT_8B = AdapterLayout(
    {
        f"{layer}.{name}": shape
        for layer in range(32)
        for name, shape in {
            "q": (4096, 4096),
            "k": (4096, 1024),
            "v": (4096, 1024),
            "o": (4096, 4096),
            "gate": (4096, 14336),
            "up": (4096, 14336),
            "down": (14336, 4096),
        }.items()
    }
)


def grid() -> list[TrialSpec]:
    return [
        TrialSpec(
            trial_id=trial_id,
            seed=0,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=1e-4,
            batch_size=batch_size,
            num_steps=100,
        )
        for trial_id, (_, r, batch_size) in enumerate(itertools.product(range(5), (16, 32, 64), (1, 2, 4, 8)))
    ]


def gpu(gibibytes: float) -> Machine:
    return Machine(
        device=torch.device("cuda"),
        device_name="test",
        dtype="bfloat16",
        threads=1,
        memory_bytes=int(gibibytes * GIB),
    )


def sizes_on(
    machine: Machine,
    *,
    specs: list[TrialSpec] | None = None,
    activation_bytes: int | None = None,
    needs: MemoryNeeds | None = None,
    request: SizeRequest | None = None,
    layout: AdapterLayout = LAYOUT_8B,
    longest_row: int = 440,
    answer_graph_bytes: int = 0,
) -> Sizes:
    inputs = SizeInputs(
        specs=specs or grid(),
        layout=layout,
        machine=machine,
        longest_row=longest_row,
        needs=needs if activation_bytes is None else estimated_needs(activation_bytes),
        request=request or SizeRequest(),
        answer_tokens=1 if answer_graph_bytes else 0,
        answer_graph_bytes=answer_graph_bytes,
    )
    return choose_sizes(inputs, free_bytes=machine.memory_bytes)


@pytest.mark.parametrize("gibibytes", [20, 40, 60, 80, 124, 180])
@pytest.mark.parametrize("activation_bytes", [300_000, 1_400_000, 5_200_000])
def test_everything_fits_together(gibibytes: float, activation_bytes: int) -> None:
    specs, machine = grid(), gpu(gibibytes)
    sizes = sizes_on(machine, activation_bytes=activation_bytes)
    row_bytes = rank_row_bytes(LAYOUT_8B, has_compute_copy=True)
    executor = sizes.executor
    used = executor.num_rank_rows * row_bytes + sizes.device_state_bytes
    used += activation_bytes * (executor.token_budget + executor.graph_tokens) + LOSS_HEAD_BYTES
    assert used <= machine.memory_bytes * (1 - MARGIN_SHARE)
    # what recordings may take beforehand is what was left for them
    assert executor.graph_bytes == activation_bytes * executor.graph_tokens
    assert executor.num_rank_rows >= max(aligned_rank(spec.adapter.r) for spec in specs)
    assert executor.num_rank_rows % 16 == 0
    assert sizes.device_state_bytes >= 0
    assert sizes.capacity.rank_rows == executor.num_rank_rows


@pytest.mark.parametrize(("asked", "kept"), [(2 * GIB, 2 * GIB), (60 * GIB, int(GRAPH_SHARE * 100 * GIB))])
def test_logits_of_recorded_decoding_take_their_room_up_to_a_share_of_memory(asked: int, kept: int) -> None:
    # one position is kept, of no bytes
    found = sizes_on(gpu(100), activation_bytes=1_400_000, answer_graph_bytes=asked)
    without = sizes_on(gpu(100 - kept / GIB), activation_bytes=1_400_000)
    assert replace(found.executor, answer_tokens=0) == without.executor
    assert found.device_state_bytes == without.device_state_bytes


def test_a_large_card_takes_the_widest_pass() -> None:
    sizes = sizes_on(gpu(180), specs=grid()[:4], activation_bytes=100_000)
    assert sizes.executor.token_budget == GPU_TOKENS[0]


def test_a_request_is_kept() -> None:
    request = SizeRequest(token_budget=512, num_slots=3, rank_rows=128)
    sizes = sizes_on(gpu(124), request=request, activation_bytes=5_000_000)
    assert (sizes.executor.token_budget, sizes.executor.num_slots, sizes.executor.num_rank_rows) == (512, 3, 128)


def test_too_small_a_card_is_an_input_error() -> None:
    with pytest.raises(InputError, match="which the smallest pass and the margin leave of"):
        sizes_on(gpu(5.8), activation_bytes=5_000_000)


def test_recorded_passes_give_way_to_trials_that_wait() -> None:
    def sizes(gibibytes: float, rank_rows: int | None) -> tuple[int, int]:
        found = sizes_on(gpu(gibibytes), request=SizeRequest(rank_rows=rank_rows), activation_bytes=5_000_000)
        return found.executor.graph_tokens, found.executor.num_rank_rows

    assert sizes(400, 256)[0] == GRAPH_TOKENS, "there is room for all"
    graph_tokens, rank_rows = sizes(124, 10_000)
    assert 512 <= graph_tokens < GRAPH_TOKENS // 2
    assert rank_rows > 1400


def test_exact_passes_are_recorded_as_far_as_the_host_is_the_slower_of_both() -> None:
    def graph_tokens(numerics: Numerics, launching: float) -> int:
        needs = replace(estimated_needs(100_000), launching_tokens=launching)
        machine = replace(gpu(180), numerics=numerics)
        return sizes_on(machine, specs=grid()[:4], needs=needs).executor.graph_tokens

    # about those of a 1B model, of an 8B model, and of one between
    assert [graph_tokens(Numerics.EXACT, tokens) for tokens in (19_700.0, 5_500.0, 9_000.5)] == [12288, 8192, 9000]
    assert graph_tokens(Numerics.FAST, 19_700.0) == GRAPH_TOKENS


def test_a_bank_leaves_room_for_the_states_of_parked_trials() -> None:
    specs = grid()
    all_rows = sum(aligned_rank(spec.adapter.r) for spec in specs)
    layout_bytes = 12 * LAYOUT_8B.width

    def sizes(gibibytes: float) -> tuple[int, float]:
        found = sizes_on(gpu(gibibytes), specs=specs, activation_bytes=4_000_000)
        return found.executor.num_rank_rows, found.device_state_bytes / (all_rows * layout_bytes)

    # passes of 4,096 tokens are full with ten trials of the grid's batch sizes, weighted by their steps; on a small
    # card states move through the host, and packs stay full
    num_usual = SPARE_TRIALS * 4096 / (200 * 4 / (1 + 1 / 2 + 1 / 4 + 1 / 8))
    assert sizes(80)[0] == aligned_rank(round(all_rows / 60 * num_usual))
    # where all states have room, the rest is the bank's
    assert sizes(140)[0] > sizes(80)[0]
    assert sizes(140)[1] >= 1.0


def test_measured_needs_take_the_place_of_the_estimate() -> None:
    needs = MemoryNeeds(pass_bytes=lambda tokens: 1e6 * tokens, reserve_bytes=GIB, margin_share=0.05)
    measured, estimated = (
        sizes_on(gpu(124), request=SizeRequest(rank_rows=10_000), needs=known)
        for known in (needs, estimated_needs(5_000_000))
    )
    assert measured.executor.num_rank_rows > estimated.executor.num_rank_rows
    used = measured.executor.num_rank_rows * rank_row_bytes(LAYOUT_8B, has_compute_copy=True)
    used += int(needs.pass_bytes(measured.executor.token_budget)) + GIB
    assert 0.93 * 124 * GIB < used <= 0.95 * 124 * GIB


def test_a_cpu_with_a_limit_has_smaller_passes() -> None:
    layout = AdapterLayout({"q": (64, 64)})
    cpu = Machine(device=torch.device("cpu"), device_name="test", dtype="float32", threads=1, memory_bytes=40 << 20)
    needs = MemoryNeeds(pass_bytes=lambda tokens: 50_000 * tokens)
    sizes = sizes_on(cpu, layout=layout, longest_row=100, needs=needs)
    assert sizes.executor.token_budget == 512
    free = sizes_on(cpu, layout=layout, longest_row=100)
    assert free.executor.token_budget == 2048
