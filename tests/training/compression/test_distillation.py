"""Distillation: gradients are those of the mean KL, the student comes nearer, its blocks stay, the teacher too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_conversion import convert_to_blocks
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.compression import distillation
from cohort.training.compression.distillation import Distilled, distill
from tests.training.small_models import random_rows, save_gemma2, save_llama

SPEC = AdapterSpec(r=4, lora_alpha=8.0)
BLOCKS = BlockDiagonal(nblocks=2)


def teacher_of(decoder: Decoder, layout: AdapterLayout) -> torch.Tensor:
    rows = initial_weights(layout, SPEC, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    for columns in layout.columns.values():
        rows[:, columns.b] = 0.1 * torch.randn(4, columns.b.stop - columns.b.start, generator=generator).double()
    return rows


def distilled(
    folder: Path, *, num_rows: int, num_steps: int, learning_rate: float
) -> tuple[Distilled, AdapterLayout, torch.Tensor]:
    """Return a student with blocks after its steps, and its weights before them."""
    save_llama(folder)
    decoder = load_decoder(folder, dtype="float32", device="cpu")
    layout = AdapterLayout(dict(decoder.linears))
    teacher = teacher_of(decoder, layout).float()
    start = convert_to_blocks(layout, SPEC, teacher, blocks=BLOCKS, r=4)
    found = distill(
        decoder,
        layout,
        teacher=(SPEC, teacher),
        student=(start.spec, start.weights_RD),
        rows=random_rows(num_rows, seed=3),
        num_steps=num_steps,
        batch_size=4,
        learning_rate=learning_rate,
    )
    return found, layout, start.weights_RD


def test_a_student_with_blocks_comes_nearer_to_its_teacher(tmp_path: Path) -> None:
    found, layout, _ = distilled(tmp_path, num_rows=20, num_steps=25, learning_rate=5e-3)
    # of the same rows, here all of them
    assert found.num_measured == 20
    assert found.after < 0.7 * found.before
    assert sum(found.divergences[-5:]) < 0.7 * sum(found.divergences[:5])
    assert not found.weights_rD[outside_blocks(layout, BLOCKS).repeat_interleave(2, dim=0)].any()


def test_steps_that_lead_away_are_taken_back(tmp_path: Path) -> None:
    found, _, before_rD = distilled(tmp_path, num_rows=8, num_steps=2, learning_rate=10.0)
    assert not found.is_nearer
    assert torch.equal(found.weights_rD, before_rD)


@pytest.mark.parametrize("save", [save_llama, save_gemma2])
def test_gradients_are_those_of_the_divergence(tmp_path: Path, save: object) -> None:
    save(tmp_path)  # type: ignore[operator]
    decoder = load_decoder(tmp_path, dtype="float64", device="cpu")
    layout = AdapterLayout(dict(decoder.linears))
    teacher, student = teacher_of(decoder, layout), initial_weights(layout, SPEC, seed=5, dtype=torch.float64)
    bank = AdapterBank(layout, num_slots=2, num_rank_rows=32, dtype=torch.float64)
    slots = [bank.insert(dataclasses.replace(SPEC), AdapterState(weights=w)) for w in (teacher, student)]
    samples = [random_rows(3, seed=4).sample(i) for i in range(3)]

    def divergence() -> float:
        return distillation._backward(decoder, bank, samples, teacher=slots[0], student=slots[1])

    divergence()
    gradients = bank.grads_RD[bank.rank_rows(slots[1])].clone()
    assert not bank.grads_RD[bank.rank_rows(slots[0])].any()
    direction = torch.randn(4, layout.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows, step, values = bank.rank_rows(slots[1]), 1e-4, []
    for sign in (1, -1):
        bank.weights_RD[rows] = student + sign * step * direction
        values.append(divergence())
    # norms keep their statistics in float32: 1e-7 of rounding over the step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float((gradients * direction).sum()), rel=1e-2)
