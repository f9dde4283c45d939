"""LoRA terms of few rows: the factors of a slot, arranged once for two products that take all siblings.

Siblings (q, k, v or gate, up) read the same rows, so their A stand side by side, transposed, and their B below each
other, each in its own columns and zeros elsewhere. A term is then two products where it was two for each sibling, and
MKL reads the arranged A as it lies: it keeps a row's bits from 2 rows on, which it does from 4 or 12 on of A itself. An
order of sums that zeros change would show: each shape is asked for the bits of the products sibling by sibling.

Arranged factors are copies, of small adapters alone, and belong to the factors as they were: torch counts writes, and a
bank those of optimizers.

Shapes:  T rows of the stream · H rows of a product · K input width · N output width of all siblings · r rank of a slot
         S ranks of all siblings side by side
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from cohort.kernels.few_rows_product import ASKED_HEIGHTS
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["MOST_SLOTS", "ArrangedTerm", "Stamp", "arranged_term", "stamp_of"]

# Slots of a linear whose factors are kept arranged, and entries of one: 8 MiB a linear at most, and as much for those
# that are stacked. Of larger factors the calls are a small part.
MOST_SLOTS = 16
MOST_ENTRIES = 1 << 17
_TALL = 48


Stamp = tuple[tuple[int, ...], tuple[int, ...]]


def stamp_of(parts: Sequence[LoraPart]) -> Stamp | None:
    """Return which parts these are, and how often their factors were written; None where torch counts no writes."""
    if any(part.a_RK.is_inference() for part in parts):
        return None
    versions = [version for part in parts for version in (part.a_RK._version, part.b_RN._version)]
    return tuple(map(id, parts)), tuple(versions)


class ArrangedTerm(NamedTuple):
    """One slot's term of all siblings, and from how many rows on it is computed.

    Attributes:
        b_SN: Times the slot's scale, which is a power of two.
        heights: By the number of rows, those that a product takes.
        parts, stamp: What it was made of, and its :func:`stamp_of`.
    """

    a_KS: Tensor
    b_SN: Tensor
    heights: tuple[int | None, ...]
    parts: tuple[LoraPart, ...]
    stamp: Stamp

    def add_to(self, y_TN: Tensor, x_TK: Tensor, *, rows: slice, num_used: int) -> bool:
        """Add the term to ``rows`` of y, and maybe to filler from ``num_used`` on; False where it cannot."""
        first, stop = rows.start, rows.stop
        count = stop - first
        height = self.heights[count] if count < len(self.heights) else None
        if height is None or first + height > x_TK.shape[0]:
            return False
        end = first + height
        s_HS = torch.mm(x_TK[first:end], self.a_KS)
        if end == stop or stop == num_used:
            y_TN[first:end].addmm_(s_HS, self.b_SN)
        else:
            # rows of others stand in the product, of which only its own are kept
            y_TN[rows] = torch.addmm(y_TN[first:end], s_HS, self.b_SN)[:count]
        return True


def arranged_term(
    parts: Sequence[LoraPart],
    *,
    stamp: Stamp,
    rank_rows: tuple[int, int],
    scale: float,
    product_width: int,
    num_threads: int,
) -> ArrangedTerm | None:
    """Return the term of the slot with these rank rows; None where it is not arranged: a large one, or other bits.

    Args:
        parts: float32 on a CPU.
        stamp: Theirs.
        scale: A power of two.
        product_width: N.
    """
    kept, key = parts[0].arranged, (*rank_rows, scale, product_width, num_threads)
    found: ArrangedTerm | None = kept.get(key)
    # parts of a term that is kept are alive, so that no others have their ids
    if found is not None and found.stamp == stamp:
        return found
    inner, rank = parts[0].a_RK.shape[1], rank_rows[1] - rank_rows[0]
    if rank * len(parts) * (inner + product_width) > MOST_ENTRIES:
        return None
    columns = tuple((part.column_start, part.b_RN.shape[1]) for part in parts)
    heights = _heights(inner, product_width, columns, rank, parts[0].a_RK.stride(0), num_threads)
    if heights is None:
        return None
    factors = [part.of_slot(*rank_rows) for part in parts]
    a_KS, b_SN = _arranged(
        [own.a_rK for own in factors], [own.b_rN for own in factors], columns=columns, width=product_width
    )
    kept.pop(key, None)
    while len(kept) >= MOST_SLOTS:
        del kept[next(iter(kept))]
    kept[key] = term = ArrangedTerm(a_KS, b_SN.mul_(scale), heights, tuple(parts), stamp)
    return term


def _arranged(
    a_rK: Sequence[Tensor], b_rN: Sequence[Tensor], *, columns: Sequence[tuple[int, int]], width: int
) -> tuple[Tensor, Tensor]:
    rank, inner = a_rK[0].shape
    a_KS = a_rK[0].new_empty(inner, rank * len(a_rK))
    b_SN = a_rK[0].new_zeros(rank * len(a_rK), width)
    for index, (a, b, (start, own)) in enumerate(zip(a_rK, b_rN, columns, strict=True)):
        ranks = slice(index * rank, (index + 1) * rank)
        a_KS[:, ranks] = a.t()
        b_SN[ranks, start : start + own] = b
    return a_KS, b_SN


@functools.cache
def _heights(
    inner: int, width: int, columns: tuple[tuple[int, int], ...], rank: int, stride: int, num_threads: int
) -> tuple[int | None, ...] | None:
    """Return by the number of rows how many a product takes to have the bits of the products of each sibling.

    None where few rows need too many, or rows do not begin at multiples of 16 bytes: then bits follow from where.
    """
    del num_threads  # torch's own is in force
    if any(own % 4 for own in (inner, width, rank, stride)):
        return None
    generator = torch.Generator().manual_seed(0)

    def drawn(height: int, wide: int) -> Tensor:
        lead = max(stride, wide)
        return torch.randn(height * lead, generator=generator).as_strided((height, wide), (lead, 1))

    # the first pass of a shape asks; a meter of its memory must not count what is asked only once
    with _disable_current_modes():
        a_rK, b_rN = [drawn(rank, inner) for _ in columns], [drawn(rank, own) for _, own in columns]
        x_TK = torch.randn(_TALL, inner, generator=generator)
        y_TN = torch.randn(_TALL, width, generator=generator)
        expected_TN = y_TN.clone()
        for a, b, (start, own) in zip(a_rK, b_rN, columns, strict=True):
            expected_TN[:, start : start + own].addmm_(torch.mm(x_TK, a.t()), b, alpha=2.0)
        a_KS, b_SN = _arranged(a_rK, b_rN, columns=columns, width=width)
        b_SN.mul_(2.0)
        good = []
        for height in ASKED_HEIGHTS:
            firsts = torch.randint(_TALL - height + 1, (3,), generator=generator).tolist()
            places = [slice(first, first + height) for first in firsts]
            if all(
                torch.equal(y_TN[own].clone().addmm_(torch.mm(x_TK[own], a_KS), b_SN), expected_TN[own])
                for own in places
            ):
                good.append(height)
    if not good or good[0] > 4:
        return None
    return tuple(next((height for height in good if height >= max(count, 1)), None) for count in range(good[-1] + 1))
