"""What the launches of several kernels share: limits of the device, second stages, scraps for what is not there.

Shapes:  T rows of the stream · C columns of S (padded rank) · R padded rank of a chunk · N width of a gradient
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.packed_linear.launch.tables import LaunchTables, RankPass
from cohort.kernels.packed_linear.portable.augmented import NO_SPREAD, Spread
from cohort.kernels.packed_linear.portable.forward import sum_partials_kernel

__all__ = [
    "chunk_counters",
    "chunk_parts",
    "is_descriptable",
    "num_multiprocessors",
    "precision",
    "shared_bytes",
    "sink_of",
    "sum_partials",
    "three",
]


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory a program may take, less some for the compiler's own use."""
    if device.type != "cuda":
        return 1 << 16
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 1 << 16)) - 4096


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Return how many programs of one a multiprocessor run at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def is_descriptable(operand: Tensor) -> bool:
    """Return whether a tile descriptor can stand for a matrix: rows one behind the other, at multiples of 16 bytes."""
    row_bytes = operand.stride(0) * operand.element_size()
    return operand.stride(1) == 1 and row_bytes % 16 == 0 and operand.data_ptr() % 16 == 0


def three(values: Sequence[object]) -> tuple[object, object, object]:
    """Fill up to three arguments; kernels read only the first PARTS."""
    return (values[0], values[min(1, len(values) - 1)], values[min(2, len(values) - 1)])


def precision(x: Tensor) -> str:
    """Return how a kernel multiplies what has the element type of ``x``."""
    # float32 is here for checks and small models: exact products, not TF32's ten bits
    return "ieee" if x.dtype == torch.float32 else "tf32"


def sum_partials(
    partials_CTC: Tensor,
    out_PTC: Tensor,
    rank_pass: RankPass,
    *,
    counts: Sequence[int],
    scaled: bool,
    tables: LaunchTables,
    spread: Spread | None = None,
) -> None:
    """Put the sums over ``counts`` partial sums of each part into S, in column order; ``spread`` those of one part."""
    rows = min(16, tables.tile_rows)
    arguments = (out_PTC, out_PTC, 0) if spread is None else spread.arguments()
    sum_partials_kernel[(rank_pass.num_tiles, len(counts), tables.tile_rows // rows)](
        rank_pass.tiles, partials_CTC, out_PTC, *three(counts), partials_CTC.stride(0), partials_CTC.stride(1),
        out_PTC.stride(0), out_PTC.stride(1), *arguments,
        PARTS=len(counts), ROWS=rows, MAX_R=rank_pass.max_class, SCALED=scaled,
        **(NO_SPREAD if spread is None else spread.constants()), num_warps=2,
    )  # fmt: skip


def chunk_parts(like: Tensor, rank_pass: RankPass, width: int) -> Tensor:
    """Float32 gradients [rank rows, width] of chunks whose slot has several; a scrap where there are none."""
    return like.new_empty(max(rank_pass.num_part_rows, 1), max(width, 16), dtype=torch.float32)


def chunk_counters(tables: LaunchTables, rank_pass: RankPass, strips: int) -> Tensor:
    """Zeros by which the chunks of each slot that has several count themselves, one for each strip of columns."""
    return tables.counters(rank_pass.num_sums * strips) if rank_pass.num_sums else rank_pass.sums


def sink_of(gradient: Tensor | None) -> Tensor:
    assert gradient is not None, "backward needs sinks"
    return gradient
