"""Launches the frozen product for Hopper, which takes the LoRA term inside: its operands, descriptors and grid.

Shapes:  T rows of the stream · K input width · N output width · P parts · C columns of S (padded rank)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from cohort.kernels.packed_linear.launch.launches import MOST_PARTS
from cohort.kernels.packed_linear.launch.support import is_descriptable, num_multiprocessors, three
from cohort.kernels.packed_linear.launch.tables import PRODUCT_ROWS, LaunchTables, RankPass
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = [
    "describe_inside",
    "exact_hopper_product",
    "filled",
    "hopper_product",
    "hopper_reads",
    "hopper_takes",
    "is_hopper",
    "runs_hopper",
    "tile_strips",
    "wasted_share",
]

# Columns of a tile, inner width of a stage.
COLUMNS, INNER = 256, 64
# Narrower tiles and what one of them takes, in widest ones: for streams whose widest tiles leave multiprocessors idle.
# An entry is the same sum over K in a tile of any width, so no bit depends on it.
NARROWER = ((128, 0.62), (64, 0.57))
# What a second launch takes, in waves of the widest tiles.
LAUNCH_COST = 0.08
# Rank rows of a stage of the LoRA term where some slot has more than 16: as many as a stage of the product holds.
WIDEST_STEP = 64
# Four stages of 48 KiB and a strip of 128 columns for each warp group's stores fill a multiprocessor's shared memory.
STAGES, STRIP = 4, 128
# Row tiles that programs work on side by side, so that they share a weight's columns in cache.
GROUP = 8
# Least share of its waves of tiles that a product must fill. Those measured fill 97 %; where the last wave has few
# tiles the BLAS is left to do it, which has tiles of other sizes.
LEAST_FILL = 0.93
# The Triton that this kernel has run with: what Gluon's functions are called changes from one to the next.
TRITON_VERSION = "3.6."


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Return whether ``device`` has warp-group matrix instructions: compute capability 9, no other."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


def describe_inside(device: torch.device) -> str:
    """Return which product can take the LoRA term inside on ``device``, or why none can.

    A linear whose tiles ask for it and cannot have it writes the term before its product: slower, equally right.
    """
    if not is_hopper(device):
        return "none: only Hopper has such a product"
    if triton.__version__.startswith(TRITON_VERSION):
        return "Hopper's own, where the tiles ask for it"
    return f"none: Hopper's own has run with Triton {TRITON_VERSION}* alone, this is {triton.__version__}"


def runs_hopper(device: torch.device) -> bool:
    """Return whether the product runs on ``device``, with the Triton there is."""
    return is_hopper(device) and triton.__version__.startswith(TRITON_VERSION)


def hopper_reads(weight_NK: Tensor) -> bool:
    """Return whether the product can read a weight, on its device."""
    is_16_bit = weight_NK.dtype in (torch.bfloat16, torch.float16)
    return is_16_bit and is_descriptable(weight_NK) and runs_hopper(weight_NK.device)


def tile_strips(num_rows: int, width: int, *, programs: int) -> tuple[tuple[slice, int], ...]:
    """Return the columns of one or two launches and of their tiles, with which an output takes the least time.

    A wave of programs that is not full takes as long as a full one. So the widest tiles may make whole waves, and
    narrower ones, which take less, the columns that are left.
    """
    wide, tile, _ = _best_strips(num_rows, width, programs)
    cut = min(width, wide * COLUMNS)
    return tuple(
        (slice(first, stop), columns)
        for first, stop, columns in ((0, cut, COLUMNS), (cut, width, tile))
        if stop > first
    )


def wasted_share(num_rows: int, width: int, *, programs: int) -> float:
    """Return by which share the waves of :func:`tile_strips` take longer than if the last of them were full."""
    full = -(-num_rows // PRODUCT_ROWS) * width / COLUMNS / programs
    return _best_strips(num_rows, width, programs)[2] / max(full, 1e-9) - 1.0


@functools.lru_cache(maxsize=4096)
def _best_strips(num_rows: int, width: int, programs: int) -> tuple[int, int, float]:
    """Return how many widest tiles a row has, the columns of the others, and what all take in full waves."""
    num_m, num_n = -(-num_rows // PRODUCT_ROWS), -(-width // COLUMNS)

    def waves(columns: int, tile: int) -> int:
        return -(-num_m * -(-columns // tile) // programs)

    def strips(wide: int) -> tuple[int, int, float]:
        left = width - min(width, wide * COLUMNS)
        own = float(waves(wide * COLUMNS, COLUMNS)) if wide else 0.0
        if not left:
            return wide, 0, own
        taken, tile = min((waves(left, tile) * share, tile) for tile, share in NARROWER)
        return wide, tile, own + taken + (LAUNCH_COST if wide else 0.0)

    whole = [min(num_n, count * programs // num_m) for count in range(1, waves(width, COLUMNS) + 1)]
    return min((strips(wide) for wide in {0, *whole, num_n}), key=lambda found: (found[2], -found[0]))


def hopper_takes(
    x_TK: Tensor, *, weight_NK: Tensor, parts: Sequence[LoraPart], tables: LaunchTables, width: int
) -> bool:
    """Return whether :func:`hopper_product` can multiply these operands into ``width`` columns, and fills the card.

    It reads 16 rank rows at a time and so wants them as a bank has them, in this launch and in later ones of the
    tables.
    """
    operands = [x_TK, weight_NK]
    for part in parts:
        operands += [part.a_RK, part.b_RN]
    return (
        is_hopper(x_TK.device)
        and tables.slots_are_aligned
        and not tables.fixed_launch
        and triton.__version__.startswith(TRITON_VERSION)
        and x_TK.dtype in (torch.bfloat16, torch.float16)
        and all(operand.dtype == x_TK.dtype and is_descriptable(operand) for operand in operands)
        and len(parts) <= MOST_PARTS
        and width * x_TK.element_size() % 16 == 0
        and all(part.column_start % COLUMNS == 0 for part in parts)
        and all(a.columns.stop <= b.column_start for a, b in itertools.pairwise(parts))
        and filled(x_TK.shape[0], width, programs=num_multiprocessors(x_TK.device)) >= LEAST_FILL
    )


def filled(num_rows: int, width: int, *, programs: int) -> float:
    """Return which share of their waves the tiles of an output fill; 0 where there are no rows."""
    num_tiles = _num_tiles(num_rows, width, columns=COLUMNS)
    return num_tiles / (max(1, -(-num_tiles // programs)) * programs)


def _num_tiles(num_rows: int, width: int, *, columns: int) -> int:
    return -(-num_rows // PRODUCT_ROWS) * -(-width // columns)


def hopper_product(
    x_TK: Tensor,
    weight_NK: Tensor,
    y_TN: Tensor,
    *,
    parts: Sequence[LoraPart],
    s_PTC: Tensor | None,
    rank_pass: RankPass | None,
    forward: bool,
    columns: int = COLUMNS,
    first_column: int = 0,
) -> None:
    """Write ``Y = X W^T`` and the parts' ``s S B^T`` on their columns (``forward``), or ``Y = X W`` and all ``S A``.

    In the second case X is dY [T, N], Y is dX [T, K] and S is dS. Without parts it is the frozen product alone. What
    :func:`hopper_takes` asks for is not checked again, and S must be contiguous. A slot's rank rows are multiplied 16
    at a time: its share of the bank, padded to 16, must hold nothing of another slot, and zeros past its rank.
    ``columns`` are those of a tile, and no bit depends on them. ``first_column``: where Y and W begin among the columns
    that the parts know.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from cohort.kernels.packed_linear.hopper.product import hopper_product_kernel

    num_rows, width = y_TN.shape

    def describe(tensor: Tensor, block: list[int]) -> Any:
        return TensorDescriptor.from_tensor(tensor, block, _shared_layout(tuple(block), tensor.dtype))

    factors = [part.b_RN if forward else part.a_RK for part in parts]
    y_desc = describe(y_TN, [PRODUCT_ROWS // 2, min(STRIP, columns)])
    s_desc: Any = y_desc
    factor_descs: list[Any] = [y_desc]
    owners = entries = x_TK
    if parts:
        assert s_PTC is not None, "the LoRA term needs S"
        assert rank_pass is not None, "the LoRA term needs the slots' tables"
        ranks = 16 if rank_pass.max_class == 16 else WIDEST_STEP
        s_desc = describe(s_PTC.view(-1, s_PTC.shape[2]), [PRODUCT_ROWS, ranks])
        factor_descs = [describe(factor, [ranks, columns]) for factor in factors]
        owners, entries = rank_pass.owners, rank_pass.slots
    starts = three([part.column_start - first_column for part in parts] or [0])
    stops = three([part.columns.stop - first_column for part in parts] or [0])
    hopper_product_kernel[(min(num_multiprocessors(x_TK.device), _num_tiles(num_rows, width, columns=columns)),)](
        describe(x_TK, [PRODUCT_ROWS, INNER]),
        describe(weight_NK, [columns, INNER] if forward else [INNER, columns]),
        y_desc, s_desc, *three(factor_descs), owners, entries, *starts, *stops, num_rows, width, x_TK.shape[1],
        GROUP, STAGES=STAGES, Y_BUFS=1, PARTS=len(parts), FORWARD=forward,
        num_warps=4,
    )  # fmt: skip


def exact_hopper_product(
    x_TK: Tensor,
    weight_NK: Tensor,
    y_TN: Tensor,
    *,
    parts: Sequence[LoraPart] = (),
    s_PTC: Tensor | None = None,
    rank_pass: RankPass | None = None,
    forward: bool,
) -> None:
    """Write what :func:`hopper_product` writes, at any number of rows and as fast as its tiles allow.

    Only the forward product takes parts. The bits are those of :func:`hopper_product`.
    """
    x_TK = x_TK if is_descriptable(x_TK) else x_TK.contiguous()
    num_rows, width = y_TN.shape
    for own, columns in tile_strips(num_rows, width, programs=num_multiprocessors(x_TK.device)):
        hopper_product(
            x_TK,
            weight_NK[own] if forward else weight_NK[:, own],
            y_TN[:, own],
            parts=parts,
            s_PTC=s_PTC,
            rank_pass=rank_pass,
            forward=forward,
            columns=columns,
            first_column=own.start,
        )


@functools.cache
def _shared_layout(block: tuple[int, int], dtype: torch.dtype) -> Any:
    from triton.experimental.gluon import language as gl

    kind = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for(list(block), kind)
