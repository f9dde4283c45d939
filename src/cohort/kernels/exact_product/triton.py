"""The product in Triton, for any GPU that Triton compiles for.

An output entry is one float32 sum over K, in steps of :data:`INNER` columns from the first to the last: no share of K
is added up apart, whatever the number of rows. Tiles are cut from the stream's first row, but a row of a matrix
instruction reads its own row of X alone, so its place in a tile decides no bit.

Shapes:  M rows of the stream · K inner width · N output columns
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of
from cohort.kernels.exact_product.agreed_blas import blas_agrees, blas_product
from cohort.kernels.exact_product.agreed_shapes import AgreedShapes
from cohort.kernels.packed_linear.choice.tiles import fitting_stages
from cohort.kernels.packed_linear.hopper.launch import exact_hopper_product, hopper_reads, runs_hopper
from cohort.kernels.packed_linear.launch.support import num_multiprocessors, shared_bytes

__all__ = [
    "CODES_INNER",
    "INNER",
    "ProductTile",
    "codes_product",
    "describe",
    "portable_product",
    "product",
    "takes_hopper",
    "write_anywhere",
]

# Columns of K of one step: the order of a sum, so the same for every tile.
INNER = 64
# Row tiles that follow each other in the launch, so that they share a weight's columns in cache.
GROUP = 8


@dataclass(frozen=True, kw_only=True)
class ProductTile:
    """Rows and columns of an output tile, and how its program is launched."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 4


# the number of rows is no constant of the binary: one compilation for every stream
@triton.jit(do_not_specialize=["M"])
def _product_kernel(
    x, w, y, bias, x_scales, w_scales, M, N, K, stride_xm, stride_wn, stride_wk, stride_ym,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    SCALED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles,). ``y (+)= x w^T (+ bias)`` where w(n, k) lies at ``n stride_wn + k stride_wk``.

    With ``SCALED`` rows of x and of w are codes, each row with a scale.
    """
    program = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * num_n
    first_m = program // in_group * GROUP
    size = tl.minimum(num_m - first_m, GROUP)
    rows = (first_m + program % in_group % size) * BM + tl.arange(0, BM)
    columns = program % in_group // size * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    # rows past the end read the last one and are not stored: no mask in the loop
    x_tile = x + tl.minimum(rows, M - 1).to(tl.int64)[:, None] * stride_xm + inner[None, :]
    # columns are not clamped: of a transposed weight they lie side by side, and only so are loads wide
    w_tile = w + columns.to(tl.int64)[None, :] * stride_wn + inner[:, None].to(tl.int64) * stride_wk
    ok_n = columns < N
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        if EVEN:
            a, b = tl.load(x_tile), tl.load(w_tile)
        else:
            left = inner < K - start
            a = tl.load(x_tile, mask=left[None, :], other=0.0)
            b = tl.load(w_tile, mask=left[:, None] & ok_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        x_tile += BK
        w_tile += BK * stride_wk
    ok = (rows < M)[:, None] & ok_n[None, :]
    places = y + rows.to(tl.int64)[:, None] * stride_ym + columns[None, :]
    if SCALED:
        acc *= tl.load(x_scales + rows, mask=rows < M, other=0.0)[:, None]
        acc *= tl.load(w_scales + columns, mask=ok_n, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias + columns, mask=ok_n, other=0.0).to(tl.float32)[None, :]
    if ADD:
        acc += tl.load(places, mask=ok, other=0.0).to(tl.float32)
    tl.store(places, acc.to(y.dtype.element_ty), mask=ok)


def portable_product(
    x_MK: Tensor,
    weight_NK: Tensor,
    y_MN: Tensor,
    *,
    tile: ProductTile,
    bias_N: Tensor | None = None,
    add: bool = False,
    inner: int = INNER,
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write ``x w^T (+ bias)`` into y, or add it to what y holds.

    Args:
        x_MK, y_MN: Matrices whose rows are dense.
        weight_NK: A weight of any strides: the transpose of one gives ``x w``.
        scales: Of the rows of x [M] and of the weight [N], float32; None where both are what they stand for.
    """
    (num_rows, width), num_out = x_MK.shape, weight_NK.shape[0]
    if num_rows == 0 or num_out == 0:
        return
    grid = (triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_out, tile.columns),)
    with on_device_of(x_MK):
        _product_kernel[grid](
            x_MK, weight_NK, y_MN, x_MK if bias_N is None else bias_N, *(scales or (x_MK, x_MK)), num_rows, num_out,
            width, x_MK.stride(0), weight_NK.stride(0), weight_NK.stride(1), y_MN.stride(0),
            BM=tile.rows, BN=tile.columns, BK=inner, GROUP=GROUP, ADD=add, BIAS=bias_N is not None,
            SCALED=scales is not None, EVEN=width % inner == 0 and num_out % tile.columns == 0,
            PRECISION="ieee" if x_MK.element_size() == 4 else "tf32",
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


# from wide to narrow; the narrower ones are for streams whose wide tiles leave multiprocessors idle
_TILES = (
    ProductTile(rows=128, columns=128, warps=8, stages=3),
    ProductTile(rows=64, columns=128),
    ProductTile(rows=64, columns=64),
)
# exact float32 products are unrolled into single multiplications: larger tiles spill and compile for minutes
_FLOAT32 = (ProductTile(rows=32, columns=32, stages=2),)
_CODES = (
    ProductTile(rows=128, columns=256, warps=8, stages=4),
    ProductTile(rows=128, columns=128, warps=8, stages=4),
    ProductTile(rows=64, columns=128),
    ProductTile(rows=64, columns=64),
)
# Columns of K of one step over 8-bit codes.
CODES_INNER = 128


def product(
    x_MI: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *, forward: bool, agreed: AgreedShapes | None = None
) -> Tensor:
    """Return ``x W^T (+ bias)``, or ``x W``.

    Which of both products runs follows from the device and the weight, never from the rows.
    """
    num_out = weight_NK.shape[0 if forward else 1]
    y_MO = x_MI.new_empty(x_MI.shape[0], num_out)
    if y_MO.numel() == 0:
        return y_MO
    if takes_hopper(weight_NK):
        if agreed is not None and blas_agrees(x_MI, weight_NK, forward=forward, agreed=agreed):
            blas_product(x_MI, weight_NK, y_MO, forward=forward)
        else:
            exact_hopper_product(x_MI, weight_NK, y_MO, forward=forward)
        return y_MO if bias_N is None else y_MO.add_(bias_N)
    write_anywhere(x_MI, weight_NK, y_MO, bias_N=bias_N, forward=forward)
    return y_MO


def write_anywhere(
    x_MI: Tensor, weight_NK: Tensor, y_MO: Tensor, *, bias_N: Tensor | None = None, forward: bool
) -> None:
    """Write the product that needs no Hopper, in the tiles that suit the number of rows."""
    x_MI = x_MI if x_MI.stride(1) == 1 else x_MI.contiguous()
    tiles = _FLOAT32 if x_MI.element_size() == 4 else _TILES
    tile = _tile_for(tiles, num_rows=x_MI.shape[0], width=y_MO.shape[1], programs=num_multiprocessors(x_MI.device))
    portable_product(x_MI, weight_NK if forward else weight_NK.t(), y_MO, tile=tile, bias_N=bias_N)


def codes_product(
    codes_MI: Tensor, weight_OI: Tensor, *, scales_M: Tensor, scales_O: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return ``(codes * scales) (weight * scales)^T`` [M, O] in ``dtype``, from 8-bit floats; both lie row by row.

    A row's bits depend on its codes, its scale and the weight alone.
    """
    y_MO = torch.empty(codes_MI.shape[0], weight_OI.shape[0], dtype=dtype, device=codes_MI.device)
    num_rows, width = y_MO.shape
    tile = _tile_for(_CODES, num_rows=num_rows, width=width, programs=num_multiprocessors(codes_MI.device))
    stages = fitting_stages(
        tile.stages, stage_bytes=(tile.rows + tile.columns) * CODES_INNER, limit_bytes=shared_bytes(codes_MI.device)
    )
    tile, scales = replace(tile, stages=stages), (scales_M, scales_O)
    portable_product(codes_MI, weight_OI, y_MO, tile=tile, inner=CODES_INNER, scales=scales)
    return y_MO


def takes_hopper(weight_NK: Tensor) -> bool:
    """Return whether Hopper's product multiplies by this weight, both ways."""
    num_out, num_in = weight_NK.shape
    return hopper_reads(weight_NK) and num_out * weight_NK.element_size() % 16 == 0 and num_in > 0


def describe(device: torch.device) -> str:
    """Return which product runs on ``device``, in words."""
    if runs_hopper(device):
        return "Hopper's own product, at every number of rows"
    return "Triton's product, at every number of rows (slower than the BLAS)"


def _tile_for(tiles: Sequence[ProductTile], *, num_rows: int, width: int, programs: int) -> ProductTile:
    """Return the widest tile with at least one for each multiprocessor, or the last. No bit depends on it."""
    for tile in tiles:
        if -(-num_rows // tile.rows) * -(-width // tile.columns) >= programs:
            return tile
    return tiles[-1]
