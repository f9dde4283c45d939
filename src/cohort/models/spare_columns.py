"""Which frozen weights get spare columns, for the augmented products of a bank with few rank rows."""

from __future__ import annotations

from collections.abc import Collection

import torch

from cohort.adapters.linear import PackedLinear
from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.packed_linear.choice.tiles import TermPlace, choose_tiles
from cohort.kernels.packed_linear.frozen_product import can_reserve
from cohort.models.decoder import Decoder

__all__ = ["reserve_spare_columns"]


def reserve_spare_columns(decoder: Decoder, *, adapted: Collection[str], num_rank_rows: int, num_rows: int) -> None:
    """Give spare columns to the linears whose product will be augmented in a pass, and take them back later.

    They are taken back where the bank is too large or leaves a linear alone: a product over a weight with columns to
    spare is 1 to 5 % slower. Call it before a pass that is launched kernel by kernel; all but the first such call
    change nothing. Weights move one at a time, and none once a CUDA graph has recorded where they are.

    Args:
        adapted: Linears that the bank adapts, by full module path.
    """
    device = decoder.device
    # weights in a ring's buffers do not move
    if decoder.ring is not None or decoder.is_recorded or device.type != "cuda" or decoder.dtype.itemsize != 2:
        return
    if describe_backend(device).backend is not Backend.TRITON:
        return
    gpu = torch.cuda.get_device_name(device)
    for linears in zip(*(layer.adaptable for layer in decoder.layers), strict=True):
        # the layers are alike
        count = _columns(linears[0], gpu=gpu, num_rank_rows=num_rank_rows, num_rows=num_rows)
        for linear in linears:
            own = count if linear.parts[0].name in adapted else 0
            if own is not None and can_reserve(linear.frozen):
                linear.frozen.reserve_columns(own)


def _columns(linear: PackedLinear, *, gpu: str, num_rank_rows: int, num_rows: int) -> int | None:
    """Return how many spare columns the linear's weight should have; None leaves it as it is."""
    # an augmented product takes the term of one part, which owns all output columns
    if len(linear.parts) > 1:
        return None
    frozen = linear.frozen
    tiles = choose_tiles(gpu, in_features=frozen.in_features, out_widths=(frozen.out_features,), num_rows=num_rows)
    if tiles.term_forward is not TermPlace.AUGMENTED or num_rank_rows > tiles.augmented_columns:
        return 0
    return tiles.augmented_columns if num_rows >= tiles.augmented_rows else None
