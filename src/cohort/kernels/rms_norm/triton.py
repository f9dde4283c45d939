"""RMSNorm on the GPU: one read and one write per operand, forward and backward, the residual add fused.

Shapes:  T rows (the leading axes, flattened) · D width
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of
from cohort.kernels.fp8_product import CodeRoom, Fp8Rows
from cohort.kernels.fp8_product.triton import row_codes

__all__ = ["add_rms_norm_backward", "add_rms_norm_forward", "rms_norm_backward", "rms_norm_forward"]

# 4096 bf16 elements by 4 warps: every thread has four 16-byte loads of each operand in flight, and 16 programs fit on a
# multiprocessor. The README of rms_norm shows how flat the optimum is.
ELEMENTS_PER_PROGRAM = 4096
ELEMENTS_PER_WARP = 1024
MOST_WARPS = 16


def row_tile(width: int) -> tuple[int, int, int]:
    """Return rows and columns of a program, and its warps: several short rows, or one long row with more warps.

    A row lies within one program, so its reduction order never depends on how many other rows there are.
    """
    columns = 1 << max(width - 1, 0).bit_length()
    rows = max(1, ELEMENTS_PER_PROGRAM // columns)
    return rows, columns, min(MOST_WARPS, max(1, rows * columns // ELEMENTS_PER_WARP))


# one compilation for every number of rows: a row has the same bits in any stream
@triton.jit(do_not_specialize=["num_rows"])
def _forward_kernel(
    x_ptr,
    term_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    new_residual_ptr,
    codes_ptr,
    scales_ptr,
    num_rows,
    x_token_stride,
    x_head_stride,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADDS: tl.constexpr,
    HAS_TERM: tl.constexpr,
    GAIN_IS_FLOAT32: tl.constexpr,
    HAS_CODES: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    places = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    x_rows = (rows // HEADS).to(tl.int64) * x_token_stride + (rows % HEADS) * x_head_stride
    x = tl.load(x_ptr + x_rows[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_TERM:
        term = tl.load(term_ptr + places, mask=mask, other=0.0)
        x = (x + term).to(x_ptr.dtype.element_ty).to(tl.float32)  # rounded as the sum in memory would be
    if ADDS:
        residual = tl.load(residual_ptr + places, mask=mask, other=0.0).to(tl.float32)
        total = (x + residual).to(new_residual_ptr.dtype.element_ty)
        tl.store(new_residual_ptr + places, total, mask=mask)
        x = total.to(tl.float32)  # the norm sees what the stream keeps: backward starts from there
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    normed = x * inverse[:, None]
    if not GAIN_IS_FLOAT32:
        normed = normed.to(y_ptr.dtype.element_ty).to(tl.float32)
    y = (normed * weight[None, :]).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + places, y, mask=mask)
    if HAS_CODES:
        # of the row as it is stored: the codes that a pass of its own would make
        codes, scales = row_codes(tl.where(mask, y.to(tl.float32), 0.0))
        tl.store(codes_ptr + places, codes, mask=mask)
        tl.store(scales_ptr + rows, scales, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def _backward_kernel(
    dy_ptr,
    x_ptr,
    dresidual_ptr,
    weight_ptr,
    dx_ptr,
    factors_ptr,
    codes_ptr,
    scales_ptr,
    num_rows,
    x_token_stride,
    x_head_stride,
    eps,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADDS: tl.constexpr,
    HAS_CODES: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    places = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    x_rows = (rows // HEADS).to(tl.int64) * x_token_stride + (rows % HEADS) * x_head_stride
    x = tl.load(x_ptr + x_rows[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + places, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        dresidual = tl.load(dresidual_ptr + places, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    dy = dy * weight[None, :]
    inverse = tl.rsqrt(tl.sum(x * x, axis=1) / WIDTH + eps)
    shared = tl.sum(dy * x, axis=1) * inverse * inverse * inverse / WIDTH
    dx = dy * inverse[:, None] - x * shared[:, None]
    if ADDS:
        dx += dresidual
    dx = dx.to(dx_ptr.dtype.element_ty)
    tl.store(dx_ptr + places, dx, mask=mask)
    if HAS_CODES:
        factors = tl.load(factors_ptr + columns, mask=columns < WIDTH, other=0.0)
        codes, scales = row_codes(tl.where(mask, dx.to(tl.float32) * factors[None, :], 0.0))
        tl.store(codes_ptr + places, codes, mask=mask)
        tl.store(scales_ptr + rows, scales, mask=rows < num_rows)


def rms_norm_forward(x_TD: Tensor, *, weight_D: Tensor, eps: float, codes: Fp8Rows | None = None) -> Tensor:
    """Return the norm of ``x`` [.., D]; a [T, H, E] view may have any strides but the last."""
    x_TD, y_TD = _with_dense_rows(x_TD), _empty_like(x_TD)
    operands = (x_TD, x_TD, x_TD, weight_D, y_TD, y_TD, *_written(codes, y_TD))
    kind = _kind(weight_D, x_TD, codes)
    _launch(_forward_kernel, operands, x_TD=x_TD, eps=eps, adds=False, HAS_TERM=False, **kind)
    return y_TD


def rms_norm_backward(
    dy_TD: Tensor, *, x_TD: Tensor, weight_D: Tensor, eps: float, room: CodeRoom | None = None
) -> Tensor:
    """Return dx [.., D], contiguous."""
    x_TD, dx_TD = _with_dense_rows(x_TD), _empty_like(x_TD)
    operands = (dy_TD.contiguous(), x_TD, x_TD, weight_D, dx_TD, *_gradient_codes(room, dx_TD))
    _launch(_backward_kernel, operands, x_TD=x_TD, eps=eps, adds=False, HAS_CODES=room is not None)
    return dx_TD


def add_rms_norm_forward(
    x_TD: Tensor,
    *,
    residual_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    codes: Fp8Rows | None = None,
    term_TD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(residual + x), residual + x)``, the sum rounded to the stream's dtype before the norm."""
    x_TD, y_TD, new_residual_TD = _with_dense_rows(x_TD), _empty_like(x_TD), _empty_like(x_TD)
    term = x_TD if term_TD is None else term_TD
    operands = (x_TD, term, residual_TD.contiguous(), weight_D, y_TD, new_residual_TD, *_written(codes, y_TD))
    kind = _kind(weight_D, x_TD, codes)
    _launch(_forward_kernel, operands, x_TD=x_TD, eps=eps, adds=True, HAS_TERM=term_TD is not None, **kind)
    return y_TD, new_residual_TD


def add_rms_norm_backward(
    dy_TD: Tensor,
    *,
    dresidual_TD: Tensor | None,
    new_residual_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    room: CodeRoom | None = None,
) -> Tensor:
    """Return the gradient of both summands, its codes in ``room``."""
    if dresidual_TD is None:
        return rms_norm_backward(dy_TD, x_TD=new_residual_TD, weight_D=weight_D, eps=eps, room=room)
    dx_TD = _empty_like(new_residual_TD)
    operands = (
        dy_TD.contiguous(), new_residual_TD, dresidual_TD.contiguous(), weight_D, dx_TD, *_gradient_codes(room, dx_TD)
    )  # fmt: skip
    _launch(_backward_kernel, operands, x_TD=new_residual_TD, eps=eps, adds=True, HAS_CODES=room is not None)
    return dx_TD


def _gradient_codes(room: CodeRoom | None, dx_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (dx_TD, dx_TD, dx_TD) if room is None else (room.factors_N, room.rows.codes_TK, room.rows.scales_T)


def _kind(weight_D: Tensor, x_TD: Tensor, codes: Fp8Rows | None) -> dict[str, bool]:
    return {"GAIN_IS_FLOAT32": weight_D.dtype != x_TD.dtype, "HAS_CODES": codes is not None}


def _written(codes: Fp8Rows | None, y_TD: Tensor) -> tuple[Tensor, Tensor]:
    return (y_TD, y_TD) if codes is None else (codes.codes_TK, codes.scales_T)


def _with_dense_rows(x_TD: Tensor) -> Tensor:
    return x_TD if x_TD.ndim in (2, 3) and x_TD.stride(-1) == 1 else x_TD.contiguous()


def _empty_like(x_TD: Tensor) -> Tensor:
    return torch.empty(x_TD.shape, dtype=x_TD.dtype, device=x_TD.device)  # contiguous, whatever x's strides


def _launch(
    kernel: triton.JITFunction, operands: tuple[Tensor, ...], *, x_TD: Tensor, eps: float, adds: bool, **constants: bool
) -> None:
    width = x_TD.shape[-1]
    num_rows = x_TD.numel() // max(width, 1)
    if num_rows == 0:
        return
    by_head = x_TD.ndim == 3
    rows, columns, num_warps = row_tile(width)
    with on_device_of(x_TD):
        kernel[(triton.cdiv(num_rows, rows),)](
            *operands,
            num_rows,
            x_TD.stride(0) if x_TD.ndim in (2, 3) else width,
            x_TD.stride(1) if by_head else 0,
            eps,
            HEADS=x_TD.shape[1] if by_head else 1,
            WIDTH=width,
            ROWS=rows,
            COLUMNS=columns,
            ADDS=adds,
            **constants,
            num_warps=num_warps,
        )
