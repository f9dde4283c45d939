"""From which number of rows on the products of a LoRA term give a row the same bits on a CPU: asked of the BLAS.

A BLAS picks its algorithm by the shape of a product. Seen with MKL, in float32: with few rows it cuts sums over the
inner width into shares, and from 4 rows on (12 with two threads) a row has the same bits at any height and place.
Nothing promises that, so the BLAS is asked for the very shapes, strides and number of threads: every height up to the
most rows of one product, at a random place. Where it says no, one product takes one sample, whose shape is its own in
any pack.

Shapes:  T rows of one product · K input width · N output width of one part · r true rank
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["MOST_ROWS", "TermShape", "least_height", "term_least"]

# Rows of one product at most; more are cut into runs. Every height up to it is asked, so it is as small as keeps
# products near their full rate: [128, 192] x [192, 16] reaches 66 GFLOP/s on one core, 1,024 rows 70. Asking about one
# shape takes 10 ms there; of up to 256 rows it took 90.
MOST_ROWS = 128
# a run of fewer rows is filled up to the least height, which should stay cheap
HIGHEST_LEAST = 32
_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class TermShape:
    """What decides which algorithm a BLAS takes for the four products of one slot's term.

    Attributes:
        in_features: K.
        out_features: N.
        product_width: Output width of the fused frozen product, in which the part has its columns.
        rank: r.
        factor_stride: Entries between two rank rows of the factors.
        num_threads: As torch has them.
    """

    in_features: int
    out_features: int
    product_width: int
    rank: int
    factor_stride: int
    num_threads: int

    @property
    def is_aligned(self) -> bool:
        """Whether every row begins at a multiple of 16 bytes; otherwise bits follow from where the first one lies."""
        strides = (self.in_features, self.product_width, self.rank, self.factor_stride)
        return all(stride * 4 % _ALIGNMENT_BYTES == 0 for stride in strides)


def least_height(shape: TermShape) -> int | None:
    """Return from how many rows on, up to :data:`MOST_ROWS`, a row of all four float32 products has the same bits.

    None where that is above :data:`HIGHEST_LEAST` or rows are not aligned: then only products of one height will do.
    """
    return _asked(shape) if shape.is_aligned else None


# by plain numbers: each piece of each linear asks, and a shape takes longer to build and to hash than to look up
@functools.cache
def term_least(k: int, n: int, width: int, rank: int, stride: int, num_threads: int) -> int | None:
    """Return :func:`least_height` of the shape that these numbers make."""
    shape = TermShape(
        in_features=k, out_features=n, product_width=width, rank=rank, factor_stride=stride, num_threads=num_threads
    )
    return least_height(shape)


@functools.cache
def _asked(shape: TermShape) -> int | None:
    generator = torch.Generator().manual_seed(0)
    least = 1
    # the first pass of a shape asks; a meter of its memory must not count what is asked only once
    with _disable_current_modes():
        for product in _products(shape, generator):
            found = _least_of(product, generator)
            if found is None:
                return None
            least = max(least, found)
    return least


# rows first : first + height of the result by a product of those rows alone
_Product = Callable[[int, int], Tensor]


def _least_of(product: _Product, generator: torch.Generator) -> int | None:
    expected = torch.cat([product(0, MOST_ROWS), product(MOST_ROWS, MOST_ROWS)])
    # from the tallest down: the first that differs ends it
    for height in range(MOST_ROWS - 1, 0, -1):
        first = int(torch.randint(2 * MOST_ROWS - height, (1,), generator=generator))
        if not torch.equal(product(first, height), expected[first : first + height]):
            return height + 1 if height < HIGHEST_LEAST else None
    return 1


def _products(shape: TermShape, generator: torch.Generator) -> list[_Product]:
    """Return the products S = x A^T, y += S B, dS = dy B^T and dx += dS A, with the strides they have in a pass."""
    rows, unit = 2 * MOST_ROWS, _ALIGNMENT_BYTES // 4

    def drawn(height: int, width: int, stride: int) -> Tensor:
        # somewhere in a larger buffer: the parts of a fused product and the slots of a bank begin anywhere
        offset = unit * int(torch.randint(16, (1,), generator=generator))
        buffer = torch.randn(offset + height * stride, generator=generator)
        return buffer.as_strided((height, width), (stride, 1), offset)

    k, n, r = shape.in_features, shape.out_features, shape.rank
    a_rK, b_rN = (drawn(r, width, max(shape.factor_stride, width)) for width in (k, n))
    x_TK, dx_TK, s_Tr = drawn(rows, k, k), drawn(rows, k, k), drawn(rows, r, r)
    y_TN, dy_TN = (drawn(rows, n, max(shape.product_width, n)) for _ in range(2))

    def added(onto: Tensor, left: Tensor, right: Tensor) -> _Product:
        room = drawn(rows, onto.shape[1], onto.stride(0))

        def product(first: int, height: int) -> Tensor:
            taken = slice(first, first + height)
            return room[taken].copy_(onto[taken]).addmm_(left[taken], right, alpha=2.0).clone()

        return product

    return [
        lambda first, height: x_TK[first : first + height] @ a_rK.t(),
        added(y_TN, s_Tr, b_rN),
        lambda first, height: dy_TN[first : first + height] @ b_rN.t(),
        added(dx_TK, s_Tr, a_rK),
    ]
