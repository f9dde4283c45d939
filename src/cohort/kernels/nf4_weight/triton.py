"""Dequantisation of 4-bit NormalFloat in one pass: half a byte and a 64th of a scale in, a weight out."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of
from cohort.kernels.nf4_weight.reference import VALUES

__all__ = ["dequantise"]

# bytes of codes a program reads: 16 in each thread, written as 32 weights
BYTES_PER_PROGRAM = 2048


@triton.jit
def _dequantise_kernel(
    codes_ptr,
    scale_codes_ptr,
    nested_scales_ptr,
    nested_map_ptr,
    offset_ptr,
    values_ptr,
    out_ptr,
    num_weights,
    BYTES: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BYTES
    places = start + tl.arange(0, BYTES)
    mask = places * 2 < num_weights
    both = tl.load(codes_ptr + places, mask=mask, other=0).to(tl.int32)
    # 64 weights, 32 bytes, share a scale; 256 scales share a scale of theirs
    block = places // 32
    code = tl.load(scale_codes_ptr + block, mask=mask, other=0).to(tl.int32)
    nested = tl.load(nested_scales_ptr + block // 256, mask=mask, other=0.0)
    scale = tl.load(nested_map_ptr + code) * nested + tl.load(offset_ptr)
    first = tl.load(values_ptr + (both >> 4)) * scale
    second = tl.load(values_ptr + (both & 15)) * scale
    weights = tl.interleave(first, second)
    out = start * 2 + tl.arange(0, 2 * BYTES)
    tl.store(out_ptr + out, weights.to(out_ptr.dtype.element_ty), mask=out < num_weights)


@functools.lru_cache(maxsize=16)
def _values(device: torch.device) -> Tensor:
    return torch.tensor(VALUES, dtype=torch.float32, device=device)


def dequantise(
    codes: Tensor,
    scale_codes: Tensor,
    nested_scales: Tensor,
    nested_map: Tensor,
    offset: Tensor,
    *,
    out: Tensor,
) -> None:
    """Write the weights into ``out``, contiguous; the same bits as the reference."""
    if out.numel() == 0:
        return
    with on_device_of(out):
        _dequantise_kernel[(triton.cdiv(codes.numel(), BYTES_PER_PROGRAM),)](
            codes,
            scale_codes,
            nested_scales,
            nested_map,
            offset,
            _values(out.device),
            out,
            out.numel(),
            BYTES=BYTES_PER_PROGRAM,
            num_warps=4,
            # the scale is a product and a sum, each rounded, as in the definition
            enable_fp_fusion=False,
        )
