"""A frozen float32 weight arranged once for products of few rows on a CPU, with the bits of any other number of rows.

With few rows most of a product is reading the weight, and a BLAS that first arranges it reads it twice: [2, 512] x
[512, 2816] takes 490 us where the arranged weight takes 300. Two copies are known: W^T with rows of N, which MKL reads
as it lies (the least time for each call), and the form that oneDNN gives a weight. Which of them sums in the order in
which :func:`~cohort.kernels.row_stable_product.row_stable_product` does, and at which numbers of rows, follows from
processor, shape and threads: where MKL multiplies many rows it agrees with itself from two on, where oneDNN does, MKL
agrees up to an inner width of about 400 and the arranged weight at any. Nothing promises that, so each shape is asked
before its first product, and a number of rows that does not keep bits is filled up to one that does.

Shapes:  T rows, H of them as they are multiplied · K input width · N output width
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from cohort.kernels.onednn_product import cut_to_rows
from cohort.kernels.row_stable_product import product_in_blocks, row_stable_product

__all__ = ["MOST_FEW_ROWS", "FewRowsWeight"]

# Numbers of rows that are asked; others are filled up to the next one.
ASKED_HEIGHTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MOST_FEW_ROWS = ASKED_HEIGHTS[-1]
# places at which each height is asked
_PLACES = 3

_Arrange = Callable[[Tensor], Tensor]
_Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _lying(weight_NK: Tensor) -> Tensor:
    return weight_NK.t().contiguous()


def _packed(weight_NK: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK.contiguous(), None)
    return found


def _packed_product(x_HK: Tensor, packed_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x_HK, packed_NK, bias_N, "none", [], "")
    return found


# By name, best first: how a weight is arranged, and how rows are multiplied by it.
_WAYS: dict[str, tuple[_Arrange, _Multiply]] = {
    "lying": (_lying, product_in_blocks),
    "packed": (_packed, _packed_product),
}


class FewRowsWeight:
    """A weight and its copy, which is made before the first product that wants it."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        """Take a float32 weight on a CPU, which never changes."""
        self._weight_NK, self._bias_N = weight_NK, bias_N
        self._arranged: dict[str, Tensor] = {}
        # by rows and threads; looked up before every product
        self._plans: dict[tuple[int, int], tuple[_Multiply, Tensor, int] | None] = {}

    def product(self, x_TK: Tensor) -> Tensor | None:
        """Return ``x W^T (+ bias)`` [T, N]; None where other code multiplies them."""
        num_rows = x_TK.shape[0]
        key = (num_rows, torch.get_num_threads())
        try:
            plan = self._plans[key]
        except KeyError:
            plan = self._plans[key] = self._plan(*key)
        if plan is None:
            return None
        multiply, arranged, height = plan
        if height == num_rows:
            return multiply(x_TK, arranged, self._bias_N)
        return cut_to_rows(multiply(F.pad(x_TK, (0, 0, 0, height - num_rows)), arranged, self._bias_N), num_rows)

    def _plan(self, num_rows: int, num_threads: int) -> tuple[_Multiply, Tensor, int] | None:
        if not 0 < num_rows <= MOST_FEW_ROWS:
            return None
        width, inner = self._weight_NK.shape
        found = _asked(inner, width, self._bias_N is not None, num_threads)
        height = next((height for height in found.heights if height >= num_rows), None) if found else None
        # rows that are mostly filler gain nothing
        if found is None or height is None or height > max(4, 2 * num_rows):
            return None
        if found.way not in self._arranged:
            # made once, not by each pass: a meter of its memory does not count it, nor could it count oneDNN's form
            with _disable_current_modes():
                self._arranged[found.way] = _WAYS[found.way][0](self._weight_NK)
        return _WAYS[found.way][1], self._arranged[found.way], height


class _Answer:
    """The way to take for a shape, and the numbers of rows at which it keeps bits."""

    def __init__(self, way: str, heights: tuple[int, ...]) -> None:
        self.way, self.heights = way, heights


@functools.cache
def _asked(inner: int, width: int, has_bias: bool, num_threads: int) -> _Answer | None:  # noqa: FBT001
    """Return the first way that keeps the bits of a few rows; None where none does."""
    del num_threads  # torch's own is in force
    generator = torch.Generator().manual_seed(0)
    # the first pass of a shape asks; a meter of its memory must not count what is asked only once
    with _disable_current_modes():
        weight_NK = torch.randn(width, inner, generator=generator)
        x_TK = torch.randn(MOST_FEW_ROWS + 16, inner, generator=generator)
        bias_N = torch.randn(width, generator=generator) if has_bias else None
        expected_TN = row_stable_product(x_TK, weight_NK.t(), bias_N)
        for way, (arrange, multiply) in _WAYS.items():
            if not _is_open(way, inner, width):
                continue
            arranged = arrange(weight_NK)
            heights = tuple(
                height
                for height in ASKED_HEIGHTS
                if _agrees(multiply, arranged, x_TK, bias_N, expected_TN, height=height, generator=generator)
            )
            if heights and heights[0] <= 4:
                return _Answer(way, heights)
    return None


def _agrees(
    multiply: _Multiply,
    arranged: Tensor,
    x_TK: Tensor,
    bias_N: Tensor | None,
    expected_TN: Tensor,
    *,
    height: int,
    generator: torch.Generator,
) -> bool:
    for first in torch.randint(len(x_TK) - height + 1, (_PLACES,), generator=generator).tolist():
        own = slice(first, first + height)
        if not torch.equal(multiply(x_TK[own], arranged, bias_N), expected_TN[own]):
            return False
    return True


def _is_open(way: str, inner: int, width: int) -> bool:
    if way == "lying":
        # MKL's bits follow from where a row begins in memory, unless all begin at multiples of 16 bytes
        return inner % 4 == 0 and width % 4 == 0
    has = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and has
