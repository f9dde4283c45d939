"""Packed causal attention on the GPU: online softmax forward, and a backward in two passes without atomics.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width
         M query rows and N key rows of a tile

Source: FlashAttention-2 (Dao 2023), algorithms 1 and 2. We differ: dQ and dK/dV have a program each, which reads its
operands once more and needs no atomic sum, and tiles follow the packed sequences, so short ones are not padded.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from cohort.kernels.attention.tiles import TILE_ROWS, AttentionTiles
from cohort.kernels.attention.triton_kernels import (
    delta_kernel,
    forward_kernel,
    key_gradient_kernel,
    query_gradient_kernel,
)
from cohort.kernels.backend import on_device_of

__all__ = ["attention_backward", "attention_forward"]

# Rows of a tile, warps and pipeline stages of the three passes: the best of those tried on an H200 for sequences of 100
# to 512 rows at head width 128 (benchmarks/kernels/attention.py --variants). They are fixed, so that a
# sequence's bits do not depend on its neighbours.
FORWARD = {"rows": TILE_ROWS, "columns": 64, "num_warps": 4, "num_stages": 3}
QUERY_GRADIENT = {"rows": TILE_ROWS, "columns": 64, "num_warps": 4, "num_stages": 2}
KEY_GRADIENT = {"rows": 32, "columns": TILE_ROWS, "num_warps": 4, "num_stages": 3}
DELTA_ROWS = 32
LOG2_E = math.log2(math.e)


def attention_forward(
    q_THE: Tensor,
    k_TGE: Tensor,
    v_TGE: Tensor,
    *,
    tiles: AttentionTiles,
    window: int | None,
    o_THE: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return o [T, H, E] and the logarithm to base 2 of each row's softmax sum [H, T].

    ``o_THE`` is written where it is given; the rows may lie apart, a row's heads may not.
    """
    q_THE, k_TGE, v_TGE = (_unit_stride(x) for x in (q_THE, k_TGE, v_TGE))
    num_rows, num_heads, width = q_THE.shape
    if o_THE is None:
        o_THE = torch.empty((num_rows, num_heads, width), dtype=q_THE.dtype, device=q_THE.device)
    lse_HT = torch.empty((num_heads, num_rows), dtype=torch.float32, device=q_THE.device)
    o_THE[tiles.num_used :] = 0
    lse_HT[:, tiles.num_used :] = 0
    table = tiles.table(FORWARD["rows"])
    if not len(table):
        return o_THE, lse_HT
    with on_device_of(q_THE):
        forward_kernel[len(table), num_heads](
            q_THE,
            k_TGE,
            v_TGE,
            o_THE,
            lse_HT,
            table,
            num_rows,
            *_strides(q_THE, k_TGE, v_TGE),
            o_THE.stride(0),
            LOG2_E / math.sqrt(width),
            **_constants(q_THE, k_TGE, window=window, rows=FORWARD["rows"], columns=FORWARD["columns"]),
            num_warps=FORWARD["num_warps"],
            num_stages=FORWARD["num_stages"],
        )
    return o_THE, lse_HT


def attention_backward(
    do_THE: Tensor,
    *,
    q_THE: Tensor,
    k_TGE: Tensor,
    v_TGE: Tensor,
    o_THE: Tensor,
    lse_HT: Tensor,
    tiles: AttentionTiles,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq [T, H, E], dk and dv [T, G, E]; zeros in rows of no sequence."""
    do_THE = do_THE.contiguous()
    q_THE, k_TGE, v_TGE = (_unit_stride(x) for x in (q_THE, k_TGE, v_TGE))
    num_rows, num_heads, width = q_THE.shape
    num_kv_heads = k_TGE.shape[1]
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_THE, k_TGE, v_TGE))
    for gradient in (dq, dk, dv):
        gradient[tiles.num_used :] = 0
    if not len(tiles.table(QUERY_GRADIENT["rows"])):
        return dq, dk, dv
    delta_HT = torch.empty_like(lse_HT)
    width_up = triton.next_power_of_2(width)
    strides = _strides(q_THE, k_TGE, v_TGE)
    scales = (LOG2_E / math.sqrt(width), 1 / math.sqrt(width))
    with on_device_of(q_THE):
        delta_kernel[triton.cdiv(num_rows, DELTA_ROWS), num_heads](
            o_THE, do_THE, delta_HT, num_rows, o_THE.stride(0), HEADS=num_heads, WIDTH=width, WIDTH_UP=width_up,
            M=DELTA_ROWS,
        )  # fmt: skip
        for kernel, settings, gradients, heads, side in (
            (query_gradient_kernel, QUERY_GRADIENT, (dq,), num_heads, "rows"),
            (key_gradient_kernel, KEY_GRADIENT, (dk, dv), num_kv_heads, "columns"),
        ):
            table = tiles.table(settings[side])
            kernel[len(table), heads](
                q_THE,
                k_TGE,
                v_TGE,
                do_THE,
                lse_HT,
                delta_HT,
                *gradients,
                table,
                num_rows,
                *strides,
                *scales,
                HEADS=num_heads,
                **_constants(q_THE, k_TGE, window=window, rows=settings["rows"], columns=settings["columns"]),
                num_warps=settings["num_warps"],
                num_stages=settings["num_stages"],
            )
    return dq, dk, dv


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def _constants(q_THE: Tensor, k_TGE: Tensor, *, window: int | None, rows: int, columns: int) -> dict[str, object]:
    num_heads, width = q_THE.shape[1:]
    return {
        "GROUP": num_heads // k_TGE.shape[1],
        "WIDTH": width,
        "WIDTH_UP": max(16, triton.next_power_of_2(width)),
        "M": rows,
        "N": columns,
        "WINDOW": window or 0,
        # float32 is for checks and small models: exact products, not TF32's ten bits
        "PRECISION": "ieee" if q_THE.dtype == torch.float32 else "tf32",
    }
