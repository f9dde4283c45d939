"""Tiles of the fused feed-forward kernels, by the padded rank of a slot.

The strips are the same for every slot and every rank, and a tile follows from the slot's own padded rank alone, so no
bit of a slot depends on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["MlpTiles", "RankTiles", "default_tiles"]


@dataclass(frozen=True, kw_only=True)
class RankTiles:
    """Tiles of one padded rank. Rows and columns are elements, warps and stages as Triton means them.

    Attributes:
        forward_block: Columns of a step of the kernel over the frozen gate-and-up product.
        forward_warps, forward_stages: How that kernel is launched.
        backward_rows, backward_block: Rows and columns of a step of the gradient kernel.
        backward_warps, backward_stages: How that kernel is launched.
    """

    forward_block: int
    forward_warps: int
    forward_stages: int
    backward_rows: int
    backward_block: int
    backward_warps: int
    backward_stages: int


@dataclass(frozen=True, kw_only=True)
class MlpTiles:
    """All tiles of one feed-forward block.

    Attributes:
        forward_strip: Columns whose share of the down intermediate one program adds up.
        by_class: Tiles of each padded rank.
        with_db: Sum dB of gate and up in the gradient pass, instead of reading dG once more for it.
    """

    forward_strip: int
    by_class: dict[int, RankTiles]
    with_db: bool = True


def default_tiles() -> MlpTiles:
    """Return the tiles measured on an H200 by ``benchmarks/kernels/mlp_fusion.py``; they suit any GPU since Ampere."""
    narrow = RankTiles(
        forward_block=64,
        forward_warps=4,
        forward_stages=3,
        backward_rows=64,
        backward_block=64,
        backward_warps=4,
        backward_stages=3,
    )
    # two programs a multiprocessor instead of one
    wide = replace(narrow, backward_stages=2)
    return MlpTiles(forward_strip=1024, by_class={16: narrow, 32: narrow, 64: wide, 128: wide})
