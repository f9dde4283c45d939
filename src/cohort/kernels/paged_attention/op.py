"""The public op, for GPUs; without gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation

__all__ = ["NewPages", "PagedTiles", "paged_attention", "store_pages"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PagedTiles:
    """New positions of some sequences, in tiles, and where their keys are.

    Attributes:
        tiles_N4: int32 [N, 4]: first stream row, queries, position of the first, row of ``tables_SP``. A tile of 0
            queries does nothing.
        tables_SP: int32 [S, P]: the pages of each sequence, in order.
        queries: Most queries of a tile: 1 for decoding, a power of two.
        most_keys: Bounds the positions from above, on the host; it decides how many programs are launched, not what
            they compute.
    """

    tiles_N4: Tensor
    tables_SP: Tensor
    queries: int
    most_keys: int
    _counters: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def counters(self, num_groups: int) -> Tensor:
        """Return int32 zeros for each tile and key head: programs count themselves there, and leave zeros."""
        if num_groups not in self._counters:
            shape = (len(self.tiles_N4), num_groups)
            self._counters[num_groups] = torch.zeros(shape, dtype=torch.int32, device=self.tiles_N4.device)
        return self._counters[num_groups]


@dataclass(frozen=True, kw_only=True, eq=False)
class NewPages:
    """Keys and values [T, G, E] of the stream's rows, and the pool's rows (int64 [T]) that they belong to."""

    k_TGE: Tensor
    v_TGE: Tensor
    rows_T: Tensor


def paged_attention(
    q_THE: Tensor,
    k_RGE: Tensor,
    v_RGE: Tensor,
    *,
    tiles: PagedTiles,
    page_rows: int,
    window: int | None = None,
    o_THE: Tensor | None = None,
    new: NewPages | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Return o [T, H, E]: each query sees all keys of its sequence up to its own position.

    A sequence's output does not depend on the other tiles: keys are read in pieces of fixed size that begin at fixed
    positions, and the pieces are joined in order.

    Args:
        k_RGE, v_RGE: The pool of one layer, pages one below the other; page p is rows ``p * page_rows`` and on.
        window: How many positions back, itself included, a query sees; None for all.
        o_THE: Where the output goes; rows of no tile keep what is there. None: a new tensor, zeros there.
        new: Keys and values that belong into the pool before; those of rows of no tile may be stored or not.

    Raises:
        ShapeError: heads or widths do not fit each other.
    """
    if q_THE.shape[1] % k_RGE.shape[1] or k_RGE.shape != v_RGE.shape or q_THE.shape[2] != k_RGE.shape[2]:
        raise ShapeError(
            f"queries {tuple(q_THE.shape)}, keys {tuple(k_RGE.shape)} and values {tuple(v_RGE.shape)} do not fit: "
            "query heads are a multiple of key-value heads, and all heads are equally wide"
        )
    if o_THE is None:
        o_THE = torch.zeros_like(q_THE)
    chosen = choose_backend(q_THE, backend=backend)
    kernels = implementation("paged_attention", chosen)
    if new is not None and (chosen is not Backend.TRITON or not _stores_as_it_reads(new, k_RGE, tiles)):
        store_pages(new.k_TGE, new.v_TGE, keys_RGE=k_RGE, values_RGE=v_RGE, rows_T=new.rows_T, backend=backend)
        new = None
    if chosen is Backend.TRITON:
        kernels.paged_attention_forward(
            q_THE, k_RGE, v_RGE, tiles=tiles, page_rows=page_rows, window=window, o_THE=o_THE, new=new
        )
        return o_THE
    found = kernels.paged_attention_reference(
        q_THE,
        k_RGE,
        v_RGE,
        tiles_N4=tiles.tiles_N4,
        tables_SP=tiles.tables_SP,
        page_rows=page_rows,
        window=window,
    )
    for row, count, _, _ in tiles.tiles_N4.tolist():
        o_THE[row : row + count] = found[row : row + count]
    return o_THE


def _stores_as_it_reads(new: NewPages, k_RGE: Tensor, tiles: PagedTiles) -> bool:
    """Return whether one launch can do both: with one query a tile, one program reads each new position."""
    alike = new.k_TGE.stride() == new.v_TGE.stride() and new.k_TGE.stride(2) == 1 and new.k_TGE.dtype == k_RGE.dtype
    return tiles.queries == 1 and alike


def store_pages(
    k_TGE: Tensor,
    v_TGE: Tensor,
    *,
    keys_RGE: Tensor,
    values_RGE: Tensor,
    rows_T: Tensor,
    backend: Backend | None = None,
) -> None:
    """Store new keys and values at ``rows_T`` (int64) of the pool of one layer; of equal rows any one stays.

    Raises:
        ShapeError: rows or heads do not fit.
    """
    if not k_TGE.shape == v_TGE.shape == (len(rows_T), *keys_RGE.shape[1:]) or keys_RGE.shape != values_RGE.shape:
        raise ShapeError(
            f"keys {tuple(k_TGE.shape)} and values {tuple(v_TGE.shape)} do not fit {len(rows_T)} rows of a pool "
            f"{tuple(keys_RGE.shape)}; all have the pool's heads"
        )
    if choose_backend(k_TGE, backend=backend) is Backend.TRITON and keys_RGE.dtype == k_TGE.dtype:
        kernels = implementation("paged_attention", Backend.TRITON)
        kernels.store_pages(k_TGE, v_TGE, keys_RGE=keys_RGE, values_RGE=values_RGE, rows_T=rows_T)
        return
    keys_RGE.index_copy_(0, rows_T, k_TGE)
    values_RGE.index_copy_(0, rows_T, v_TGE)
