"""Codes found by two loads are those of a search, wherever a value lies."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from cohort.kernels.adamw_8bit.triton import NUM_RANGES, maps, nearest_code, ranges
from cohort.kernels.dynamic_map import dynamic_map, nearest_codes

BLOCK = 1024


@triton.jit
def _codes_kernel(x_ptr, codes_ptr, middles_ptr, ranges_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(codes_ptr + places, nearest_code(tl.load(x_ptr + places), middles_ptr, ranges_ptr))


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_those_of_a_search(triton_device: str, signed: bool) -> None:
    values = dynamic_map(signed=signed)
    middles = (values[:-1] + values[1:]) / 2.0
    edges = torch.cat((values, middles, 10.0 ** -torch.arange(0.0, 12.0), torch.tensor([0.0, 1e-38, 1e-45])))
    # what lies next to an edge may fall on the wrong side of it
    near = [torch.nextafter(edges, torch.tensor(side)) for side in (-2.0, 2.0)]
    x = torch.cat((edges, *near, 10.0 ** (-9 * torch.rand(20 * BLOCK)))).clamp(0.0, 1.0)
    if signed:
        x = torch.cat((x, -x))
    x = torch.nn.functional.pad(x, (0, -len(x) % BLOCK)).to(triton_device)
    codes = torch.empty(len(x), dtype=torch.int32, device=triton_device)
    middles_ptr = maps(x.device)[256 if signed else 768 :]
    ranges_ptr = ranges(x.device)[0 if signed else 2 * NUM_RANGES.value :]
    _codes_kernel[(len(x) // BLOCK,)](x, codes, middles_ptr, ranges_ptr, SIZE=BLOCK)
    assert torch.equal(codes.cpu(), nearest_codes(x.cpu(), values).int())
