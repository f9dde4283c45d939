"""Tiles of the portable product: which one is taken, and that no bit depends on it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.exact_product.triton import (
    _CODES,
    _TILES,
    CODES_INNER,
    ProductTile,
    _tile_for,
    codes_product,
    portable_product,
)
from cohort.kernels.fp8_product import fp8_problem, quantise_rows
from tests.kernels.closeness import assert_near, low_precision


def test_every_tile_gives_the_same_bits_and_adds_to_what_is_there(triton_device: str) -> None:
    generator, dtype = torch.Generator().manual_seed(0), low_precision(triton_device)
    x, w, y = (torch.randn(*s, generator=generator).to(triton_device, dtype) for s in ((70, 130), (60, 130), (70, 60)))
    small = (ProductTile(rows=16, columns=32), ProductTile(rows=32, columns=16))
    for add in (False, True):
        found = []
        for tile in small if triton_device == "cpu" else _TILES:
            found.append(y.clone())
            portable_product(x, w, found[-1], tile=tile, add=add)
        assert all(torch.equal(other, found[0]) for other in found[1:])
        expected = x.double() @ w.double().T + (y.double() if add else 0.0)
        # one sum in float32, rounded once
        assert_near(found[0], expected, roundings=2.0)


def test_few_rows_take_narrow_tiles() -> None:
    assert _tile_for(_TILES, num_rows=8192, width=4096, programs=132) is _TILES[0]
    assert _tile_for(_TILES, num_rows=256, width=4096, programs=132) is _TILES[-1]


def test_every_tile_gives_codes_the_same_bits(triton_device: str) -> None:
    if triton_device != "cpu" and (problem := fp8_problem(torch.device(triton_device))):
        pytest.skip(problem)
    torch.manual_seed(0)
    # rounded on the host: Triton's interpreter rounds to e4m3 wrongly
    x, w = (quantise_rows(torch.randn(*shape)) for shape in ((70, 144), (48, 144)))
    scales = (x.scales_T.to(triton_device), w.scales_T.to(triton_device))
    codes, weight = x.codes_TK.to(triton_device), w.codes_TK.to(triton_device)
    found = []
    for tile in (
        (ProductTile(rows=16, columns=32), ProductTile(rows=32, columns=16)) if triton_device == "cpu" else _CODES
    ):
        found.append(torch.full((70, 48), float("nan"), device=triton_device))
        portable_product(codes, weight, found[-1], tile=tile, inner=CODES_INNER, scales=scales)
    assert all(torch.equal(other, found[0]) for other in found[1:])
    expected = (x.codes_TK.double() * x.scales_T[:, None]) @ (w.codes_TK.double() * w.scales_T[:, None]).T
    # tensor cores keep about 14 bits of such sums
    assert_near(found[0].cpu(), expected, roundings=2.0**14)
    few = codes_product(codes[17:20], weight, scales_M=scales[0][17:20], scales_O=scales[1], dtype=torch.float32)
    assert torch.equal(few, found[0][17:20])
