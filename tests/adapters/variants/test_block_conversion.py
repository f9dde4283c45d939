"""LoRA to BD-LoRA: exact where ranks allow, else the tail of each block's singular values, also on given inputs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_conversion import block_spectra, convert_to_blocks, input_blocks
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks

LAYOUT = AdapterLayout({"l.q_proj": (12, 16), "l.o_proj": (16, 12), "l.other": (5, 7)})
BD = BlockDiagonal(nblocks=4, match_strict=False)
SWAPPED = dataclasses.replace(BD, target_modules_bd_a=COLUMN_PARALLEL, target_modules_bd_b=ROW_PARALLEL)
SPEC = AdapterSpec(r=4, lora_alpha=8.0)


def random_rows(r: int = 4, *, seed: int = 0) -> Tensor:
    return torch.randn(r, LAYOUT.width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def product(spec: AdapterSpec, rows: Tensor, name: str) -> Tensor:
    columns = LAYOUT.columns[name]
    return spec.scale * rows[:, columns.b].T @ rows[:, columns.a]


@pytest.mark.parametrize("blocks", [BD, SWAPPED], ids=["bd", "swapped"])
@pytest.mark.parametrize("use_rslora", [False, True])
def test_n_times_the_rank_is_exact(blocks: BlockDiagonal, use_rslora: bool) -> None:
    spec, rows = dataclasses.replace(SPEC, use_rslora=use_rslora), random_rows()
    found = convert_to_blocks(LAYOUT, spec, rows, blocks=blocks, r=16)
    assert found.is_exact
    assert not found.weights_RD[outside_blocks(LAYOUT, blocks).repeat_interleave(4, dim=0)].any()
    for name in LAYOUT.linears:
        torch.testing.assert_close(product(found.spec, found.weights_RD, name), product(spec, rows, name))


@pytest.mark.parametrize("blocks", [BD, SWAPPED], ids=["bd", "swapped"])
def test_what_is_lost_is_the_tail_of_each_blocks_spectrum(blocks: BlockDiagonal) -> None:
    rows = random_rows()
    found = convert_to_blocks(LAYOUT, SPEC, rows, blocks=blocks, r=8)
    spectra = block_spectra(LAYOUT, rows, blocks=blocks)
    for name in LAYOUT.linears:
        exact = product(SPEC, rows, name)
        error = (product(found.spec, found.weights_RD, name) - exact).norm() / exact.norm()
        kept = 2 if blocks.factor_of(name) is not None else 4
        tail = spectra[name][:, kept:].square().sum() / spectra[name].square().sum()
        assert float(error) == pytest.approx(float(tail) ** 0.5, abs=1e-9)
        assert found.errors[name] == pytest.approx(float(error), abs=1e-7)
    assert found.errors["l.other"] == 0.0


def test_inputs_make_the_error_on_them_least() -> None:
    rows = random_rows()
    # inputs in few directions of very different size, fewer of them than features
    scales = torch.logspace(0, -3, 16, dtype=torch.float64)
    # not seeded as the rows are, nor left to chance: some draws make the plain one nearly as good
    drawn = torch.Generator().manual_seed(2)
    inputs = {
        name: torch.randn(10, shape[0], dtype=torch.float64, generator=drawn) * scales[: shape[0]]
        for name, shape in LAYOUT.linears.items()
    }
    grams = {}
    for name, columns in LAYOUT.columns.items():
        parts = input_blocks(BD, name, LAYOUT.linears[name])
        z = [inputs[name][:, ins] @ rows[:, columns.a][:, ins].T for ins in parts]
        grams[name] = torch.stack([part.T @ part for part in z])
    plain = convert_to_blocks(LAYOUT, SPEC, rows, blocks=BD, r=8)
    white = convert_to_blocks(LAYOUT, SPEC, rows, blocks=BD, r=8, grams=grams)
    x, exact = inputs["l.q_proj"], product(SPEC, rows, "l.q_proj")
    errors = [
        float((x @ (product(c.spec, c.weights_RD, "l.q_proj") - exact).T).norm() / (x @ exact.T).norm())
        for c in (plain, white)
    ]
    assert errors[1] < 0.7 * errors[0]
    assert white.errors["l.q_proj"] == pytest.approx(errors[1], rel=1e-6)


def test_fewer_blocks_of_the_same_adapter_are_exact() -> None:
    fine = convert_to_blocks(LAYOUT, SPEC, random_rows(), blocks=BD, r=8)
    coarse = convert_to_blocks(LAYOUT, fine.spec, fine.weights_RD, blocks=dataclasses.replace(BD, nblocks=2), r=8)
    assert coarse.is_exact
    assert torch.equal(coarse.weights_RD, fine.weights_RD)
    assert coarse.spec.scale == fine.spec.scale


def test_an_adapter_of_zeros_stays_one() -> None:
    rows = random_rows()
    rows[:, LAYOUT.columns["l.q_proj"].b] = 0.0
    found = convert_to_blocks(LAYOUT, SPEC, rows, blocks=BD, r=4)
    assert torch.isfinite(found.weights_RD).all()
    assert not product(found.spec, found.weights_RD, "l.q_proj").any()


def test_blocks_with_fewer_outputs_than_ranks_lose_nothing() -> None:
    narrow = AdapterLayout({"l.k_proj": (12, 8)})
    rows = torch.randn(4, narrow.width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert block_spectra(narrow, rows, blocks=BD)["l.k_proj"].shape == (4, 4)
    found = convert_to_blocks(narrow, SPEC, rows, blocks=BD, r=12)
    columns = narrow.columns["l.k_proj"]
    exact = SPEC.scale * rows[:, columns.b].T @ rows[:, columns.a]
    converted = found.spec.scale * found.weights_RD[:, columns.b].T @ found.weights_RD[:, columns.a]
    torch.testing.assert_close(converted, exact)
    assert found.is_exact
