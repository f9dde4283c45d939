"""The public op: causal attention within each sequence of a packed stream, on the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.attention.tiles import AttentionTiles
from cohort.kernels.backend import Backend, implementation
from cohort.kernels.packed_linear import PaddedRows

__all__ = ["packed_attention"]


class _PackedAttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_THE: Tensor,
        k_TGE: Tensor,
        v_TGE: Tensor,
        tiles: AttentionTiles,
        window: int | None,
        room: PaddedRows | None,
    ) -> Tensor:
        kernels = implementation("attention", Backend.TRITON)
        o_THE = None if room is None else room.rows_TK.unflatten(1, q_THE.shape[1:])
        o_THE, lse_HT = kernels.attention_forward(q_THE, k_TGE, v_TGE, tiles=tiles, window=window, o_THE=o_THE)
        ctx.save_for_backward(q_THE, k_TGE, v_TGE, o_THE, lse_HT)
        ctx.kernels, ctx.tiles, ctx.window = kernels, tiles, window
        result: Tensor = o_THE
        return result

    @staticmethod
    def backward(ctx: Any, do_THE: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        q_THE, k_TGE, v_TGE, o_THE, lse_HT = ctx.saved_tensors
        dq, dk, dv = ctx.kernels.attention_backward(
            do_THE,
            q_THE=q_THE,
            k_TGE=k_TGE,
            v_TGE=v_TGE,
            o_THE=o_THE,
            lse_HT=lse_HT,
            tiles=ctx.tiles,
            window=ctx.window,
        )
        return dq, dk, dv, None, None, None


def packed_attention(
    q_THE: Tensor,
    k_TGE: Tensor,
    v_TGE: Tensor,
    *,
    tiles: AttentionTiles,
    window: int | None = None,
    room: PaddedRows | None = None,
) -> Tensor:
    """Return o [T, H, E]: each row attends to the rows of its own sequence up to itself; zeros in rows of no sequence.

    Differentiable in q, k and v. No padding is made or read, sequences may have any length, query heads may share
    key-value heads. The last axis must be contiguous, the others may be strided (slices of one fused projection).
    Sums run in a fixed order without atomics: the same stream gives the same bits, and a sequence has the same bits in
    any stream.

    Args:
        q_THE: Queries, already rotated.
        k_TGE: Keys, already rotated; G divides H.
        window: How many rows back a query sees, itself included; None for all.
        room: Where o is written, [T, H * E], if not into memory of its own.

    Raises:
        ShapeError: shapes disagree, or the sequences do not fit into the stream.
    """
    num_rows, num_heads, width = q_THE.shape
    if k_TGE.shape != v_TGE.shape or k_TGE.shape[0] != num_rows or k_TGE.shape[2] != width:
        raise ShapeError(f"q {tuple(q_THE.shape)}, k {tuple(k_TGE.shape)} and v {tuple(v_TGE.shape)} do not fit")
    if num_heads % k_TGE.shape[1]:
        raise ShapeError(f"{num_heads} query heads cannot share {k_TGE.shape[1]} key-value heads evenly")
    if tiles.num_used > num_rows:
        raise ShapeError(f"the sequences end at row {tiles.num_used} but the stream has {num_rows}")
    if room is not None and room.rows_TK.shape != (num_rows, num_heads * width):
        raise ShapeError(f"o [{num_rows}, {num_heads * width}] does not fit a room of {tuple(room.rows_TK.shape)}")
    result: Tensor = _PackedAttentionFunction.apply(q_THE, k_TGE, v_TGE, tiles, window, room)
    return result
