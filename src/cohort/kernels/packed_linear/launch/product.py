"""Launches a frozen product that takes the LoRA term inside: Hopper's own, or the portable one.

Shapes:  T rows of the stream · K input width · N output width · P parts · C columns of S (padded rank)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cohort.kernels.packed_linear.choice.tiles import TileChoice
from cohort.kernels.packed_linear.hopper.launch import TRITON_VERSION, hopper_product, hopper_takes, is_hopper
from cohort.kernels.packed_linear.launch.launches import MOST_PARTS
from cohort.kernels.packed_linear.launch.support import (
    has_tensor_memory_engine,
    is_descriptable,
    num_multiprocessors,
    precision,
    three,
)
from cohort.kernels.packed_linear.launch.tables import PRODUCT_ROWS, LaunchTables, RankPass
from cohort.kernels.packed_linear.portable.product import product_kernel
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["describe_inside", "product", "product_takes"]

# Ranks that one step of the LoRA term adds; the portable product's registers hold no more.
PRODUCT_RANKS = 64


def describe_inside(device: torch.device) -> str:
    """Return which product can take the LoRA term inside on ``device``, or why none can.

    A linear whose tiles ask for it and cannot have it writes the term before its product: slower, equally right.
    """
    if is_hopper(device):
        if triton.__version__.startswith(TRITON_VERSION):
            return "Hopper's own, where the tiles ask for it"
        return f"none: Hopper's own has run with Triton {TRITON_VERSION}* alone, this is {triton.__version__}"
    if has_tensor_memory_engine(device):
        return "the portable one, where the tiles ask for it"
    return "none: it needs tile descriptors, which GPUs from Hopper on have"


def product_takes(
    x_TK: Tensor,
    *,
    weight_NK: Tensor,
    parts: Sequence[LoraPart],
    tables: LaunchTables,
    tiles: TileChoice,
    forward: bool,
) -> bool:
    """Tell whether :func:`product` can multiply these operands; what it asks for is what tile descriptors need.

    Hopper has a product of its own, which reads 16 rank rows at a time and so wants them as a bank has them, in this
    launch and in later ones of the tables; where it cannot, none: the portable one is slower than the BLAS there.
    """
    if is_hopper(x_TK.device):
        width = weight_NK.shape[0 if forward else 1]
        apart = tables.slots_are_aligned and not tables.fixed_launch
        return apart and hopper_takes(x_TK, weight_NK=weight_NK, parts=parts, width=width)
    return (
        has_tensor_memory_engine(x_TK.device)
        and x_TK.dtype == weight_NK.dtype
        and 1 <= len(parts) <= MOST_PARTS
        and x_TK.shape[0] > 0
        and all(is_descriptable(operand) for operand in (x_TK, weight_NK))
        and all(part.column_start % tiles.product_columns == 0 for part in parts)
        and all(a.column_start < b.column_start for a, b in itertools.pairwise(parts))
    )


def product(
    x_TK: Tensor,
    weight_NK: Tensor,
    y_TN: Tensor,
    *,
    parts: Sequence[LoraPart],
    s_PTC: Tensor,
    rank_pass: RankPass,
    tiles: TileChoice,
    forward: bool,
) -> None:
    """Write ``Y = X W^T`` and the parts' ``s S B^T`` on their columns (``forward``), or ``Y = X W`` and all ``S A``.

    In the second case X is dY [T, N], Y is dX [T, K] and S is dS.
    """
    if is_hopper(x_TK.device):
        hopper_product(
            x_TK, weight_NK, y_TN, parts=parts, s_PTC=s_PTC, rank_pass=rank_pass, forward=forward,
            group=tiles.product_group,
        )  # fmt: skip
        return
    factors = [part.b_RN if forward else part.a_RK for part in parts]
    rows, columns, inner = PRODUCT_ROWS, tiles.product_columns, tiles.product_inner
    programs = num_multiprocessors(x_TK.device) * tiles.products_per_multiprocessor
    programs = min(programs, triton.cdiv(y_TN.shape[0], rows) * triton.cdiv(y_TN.shape[1], columns))
    ranks = min(rank_pass.max_class, PRODUCT_RANKS)
    descriptors: list[Any] = [
        TensorDescriptor.from_tensor(x_TK, [rows, inner]),
        TensorDescriptor.from_tensor(weight_NK, [columns, inner] if forward else [inner, columns]),
        TensorDescriptor.from_tensor(y_TN, [rows, columns // 2]),
    ]
    product_kernel[(programs,)](
        *descriptors, rank_pass.owners, rank_pass.slots, s_PTC, *three(factors),
        *three([part.column_start for part in parts]), *three([part.columns.stop for part in parts]),
        y_TN.shape[0], y_TN.shape[1], x_TK.shape[1], s_PTC.stride(0), s_PTC.stride(1),
        *three([factor.stride(0) for factor in factors]),
        PARTS=len(parts), BM=rows, BN=columns, BK=inner, BR=ranks, RANK_STEPS=rank_pass.max_class // ranks,
        GROUP=tiles.product_group, FORWARD=forward, PRECISION=precision(x_TK),
        num_warps=tiles.product_warps, num_stages=tiles.product_stages,
    )  # fmt: skip
