"""SwiGLU on the GPU: gate and up read once, the result (or both gradients) written once.

Where the next product multiplies e4m3, a program has a whole row, in pieces: it writes them, keeps the largest entry,
and reads them again from the caches to write their codes.

Shapes:  T rows · F/2 columns of the result, half of the fused product's
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
from cohort.kernels.fp8_product.triton import codes_of, inverse_of, row_scales

__all__ = ["swiglu_backward", "swiglu_forward"]

# One 16-byte load of every operand per thread at 4 warps; feed-forward widths are multiples of 256 nearly always.
LARGEST_BLOCK = 1024
SMALLEST_BLOCK = 128
# The same of a row that one program rounds: several of its programs share a multiprocessor, and feed-forward widths are
# multiples of this nearly always.
PIECE, PIECE_WARPS = 2048, 8


@triton.jit
def _activated(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _gradients(dy, gate, up):
    """Return the gradients of gate and up."""
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    return dy * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), dy * (gate * sigmoid)


@triton.jit
def _forward_kernel(
    gate_up_ptr, term_ptr, y_ptr, gate_up_row_stride, width, BLOCK: tl.constexpr, HAS_TERM: tl.constexpr
):
    # one axis for rows and blocks together: a second axis of a grid ends at 65,535
    blocks = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    start = gate_up_ptr + row * gate_up_row_stride
    gate = tl.load(start + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + width + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_TERM:
        term_ptr += row * 2 * width
        gate_term = tl.load(term_ptr + columns, mask=mask, other=0.0)
        up_term = tl.load(term_ptr + width + columns, mask=mask, other=0.0)
        # rounded as the sum in memory would be
        gate = (gate + gate_term).to(gate_up_ptr.dtype.element_ty).to(tl.float32)
        up = (up + up_term).to(gate_up_ptr.dtype.element_ty).to(tl.float32)
    tl.store(y_ptr + row * width + columns, _activated(gate, up).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _forward_codes_kernel(
    gate_up_ptr, y_ptr, codes_ptr, scales_ptr, gate_up_row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (rows,). What :func:`_forward_kernel` writes, and its rows' codes."""
    row = tl.program_id(0).to(tl.int64)
    gate_up_ptr += row * gate_up_row_stride
    y_ptr += row * WIDTH
    codes_ptr += row * WIDTH
    sizes = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < WIDTH
        gate = tl.load(gate_up_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_up_ptr + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
        y = _activated(gate, up).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + columns, y, mask=mask)
        sizes = tl.maximum(sizes, tl.abs(y.to(tl.float32)))
    scale = row_scales(tl.max(sizes, axis=0))
    tl.store(scales_ptr + row, scale)
    inverse = inverse_of(scale)
    # a thread may read what another thread of the program has written
    tl.debug_barrier()
    for start in tl.static_range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < WIDTH
        y = tl.load(y_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(codes_ptr + columns, codes_of(y, scale, inverse), mask=mask)


@triton.jit
def _backward_kernel(dy_ptr, gate_up_ptr, dgate_up_ptr, dy_row_stride, gate_up_row_stride, width, BLOCK: tl.constexpr):
    # one axis for rows and blocks together: a second axis of a grid ends at 65,535
    blocks = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    columns = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    start = gate_up_ptr + row * gate_up_row_stride
    dy = tl.load(dy_ptr + row * dy_row_stride + columns, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(start + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + width + columns, mask=mask, other=0.0).to(tl.float32)
    dgate, dup = _gradients(dy, gate, up)
    out = dgate_up_ptr + row * 2 * width
    tl.store(out + columns, dgate.to(dgate_up_ptr.dtype.element_ty), mask=mask)
    tl.store(out + width + columns, dup.to(dgate_up_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_codes_kernel(
    dy_ptr,
    gate_up_ptr,
    dgate_up_ptr,
    factors_ptr,
    codes_ptr,
    scales_ptr,
    dy_row_stride,
    gate_up_row_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (rows,). What :func:`_backward_kernel` writes, and its rows' codes with factors by column."""
    row = tl.program_id(0).to(tl.int64)
    dy_ptr += row * dy_row_stride
    gate_up_ptr += row * gate_up_row_stride
    dgate_up_ptr += row * 2 * WIDTH
    codes_ptr += row * 2 * WIDTH
    sizes = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < WIDTH
        dy = tl.load(dy_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        gate = tl.load(gate_up_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_up_ptr + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
        dgate, dup = _gradients(dy, gate, up)
        dgate = dgate.to(dgate_up_ptr.dtype.element_ty)
        dup = dup.to(dgate_up_ptr.dtype.element_ty)
        tl.store(dgate_up_ptr + columns, dgate, mask=mask)
        tl.store(dgate_up_ptr + WIDTH + columns, dup, mask=mask)
        sizes = tl.maximum(sizes, _factored_sizes(dgate, factors_ptr + columns, mask))
        sizes = tl.maximum(sizes, _factored_sizes(dup, factors_ptr + WIDTH + columns, mask))
    scale = row_scales(tl.max(sizes, axis=0))
    tl.store(scales_ptr + row, scale)
    inverse = inverse_of(scale)
    # a thread may read what another thread of the program has written
    tl.debug_barrier()
    for start in tl.static_range(0, 2 * WIDTH, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < 2 * WIDTH
        gradient = tl.load(dgate_up_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        gradient *= tl.load(factors_ptr + columns, mask=mask, other=0.0)
        tl.store(codes_ptr + columns, codes_of(gradient, scale, inverse), mask=mask)


@triton.jit
def _factored_sizes(x, factors_ptr, mask):
    return tl.abs(x.to(tl.float32) * tl.load(factors_ptr, mask=mask, other=0.0))


def swiglu_forward(gate_up_TF: Tensor, *, term_TF: Tensor | None = None, codes: Fp8Rows | None = None) -> Tensor:
    """Return ``silu(gate) * up`` [T, F/2], contiguous; ``gate_up`` may be rows of a wider buffer, a term may not."""
    gate_up_TF = _with_dense_rows(gate_up_TF)
    num_rows, width = gate_up_TF.shape[0], gate_up_TF.shape[1] // 2
    y_TF = torch.empty(num_rows, width, dtype=gate_up_TF.dtype, device=gate_up_TF.device)
    if codes is not None and y_TF.numel():
        with on_device_of(y_TF):
            _forward_codes_kernel[(num_rows,)](
                gate_up_TF,
                y_TF,
                codes.codes_TK,
                codes.scales_T,
                gate_up_TF.stride(0),
                WIDTH=width,
                BLOCK=PIECE,
                num_warps=PIECE_WARPS,
            )
    elif y_TF.numel():
        block = _block(width)
        with on_device_of(y_TF):
            _forward_kernel[(triton.cdiv(width, block) * num_rows,)](
                gate_up_TF,
                y_TF if term_TF is None else term_TF,
                y_TF,
                gate_up_TF.stride(0),
                width,
                BLOCK=block,
                HAS_TERM=term_TF is not None,
                num_warps=_warps(block),
            )
    return y_TF


def swiglu_backward(dy_TF: Tensor, *, gate_up_TF: Tensor, room: CodeRoom | None = None) -> Tensor:
    """Return ``[dgate, dup]`` [T, F], contiguous; its codes in ``room``."""
    dy_TF, gate_up_TF = _with_dense_rows(dy_TF), _with_dense_rows(gate_up_TF)
    dgate_up_TF = torch.empty(gate_up_TF.shape, dtype=gate_up_TF.dtype, device=gate_up_TF.device)
    num_rows, width = dy_TF.shape
    if room is not None and dy_TF.numel():
        with on_device_of(dy_TF):
            _backward_codes_kernel[(num_rows,)](
                dy_TF,
                gate_up_TF,
                dgate_up_TF,
                room.factors_N,
                room.rows.codes_TK,
                room.rows.scales_T,
                dy_TF.stride(0),
                gate_up_TF.stride(0),
                WIDTH=width,
                BLOCK=PIECE,
                num_warps=PIECE_WARPS,
            )
    elif dy_TF.numel():
        block = _block(width)
        with on_device_of(dy_TF):
            _backward_kernel[(triton.cdiv(width, block) * num_rows,)](
                dy_TF,
                gate_up_TF,
                dgate_up_TF,
                dy_TF.stride(0),
                gate_up_TF.stride(0),
                width,
                BLOCK=block,
                num_warps=_warps(block),
            )
    return dgate_up_TF


def _with_dense_rows(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _block(width: int) -> int:
    """Return the largest block that leaves no idle columns, or the largest of all where none fits."""
    block = LARGEST_BLOCK
    while block > SMALLEST_BLOCK and width % block:
        block //= 2
    return block if width % block == 0 else LARGEST_BLOCK


def _warps(block: int) -> int:
    return max(1, block // 256)
