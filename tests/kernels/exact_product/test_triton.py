"""Tiles of the portable product: which one is taken, and that no bit depends on it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.exact_product.triton import _TILES, ProductTile, _tile_for, portable_product
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
