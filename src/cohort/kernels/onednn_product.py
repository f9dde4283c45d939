"""Products of float32 rows by oneDNN on a CPU, where it gives a row the same bits in any number of rows: it is asked.

oneDNN writes a kernel for each shape, with the widest vectors that the CPU has: on an AMD processor with AVX-512 it
multiplies 2.2 times as fast as MKL, which takes AVX2 there, and 1.1 times as fast with AVX2. Its sums over the inner
width stay in order where MKL cuts them. Seen so: from 2 rows on a row has the same bits at any height and place, for 19
shapes, with AVX2 and AVX-512, with one thread and two. Nothing promises that, so it is asked for each shape and number
of threads before the first product; where the answer is no, other code multiplies.

Shapes:  T rows · I inner width · W output width
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["cut_to_rows", "onednn_product"]

# Below, MKL is as fast: a call of oneDNN takes 15 us before it begins. By the weight alone, since a row's bits must not
# follow from how many there are.
LEAST_WEIGHT = 1 << 14
# Numbers of rows that are asked, the tallest is what the others are held against. A weight that is large enough to make
# asking slow is asked from the second on.
ASKED_ROWS = (1040, 272, 128, 80, 48, 32, 16, 2)
MOST_ASKED_WEIGHT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What decides which kernel oneDNN writes, but for the number of rows.

    Attributes:
        is_transposed: Whether the entries of a column lie one after the other in memory, not those of a row.
        num_threads: As torch has them.
    """

    inner: int
    width: int
    is_transposed: bool
    num_threads: int


def onednn_product(x_TI: Tensor, w_IW: Tensor, bias_W: Tensor | None = None) -> Tensor | None:
    """Return ``x w (+ bias)`` [T, W], a row's bits being its own; None where oneDNN does not give that."""
    inner, width = w_IW.shape
    num_rows = x_TI.shape[0]
    if x_TI.dtype is not torch.float32 or w_IW.dtype is not torch.float32 or inner * width < LEAST_WEIGHT:
        return None
    is_transposed = w_IW.stride() == (1, inner)
    if num_rows == 0 or not (is_transposed or w_IW.is_contiguous()):
        return None
    shape = _Shape(inner=inner, width=width, is_transposed=is_transposed, num_threads=torch.get_num_threads())
    least = _least_rows(shape)
    if least is None:
        return None
    if num_rows >= least:
        return _product(x_TI, w_IW, bias_W)
    return cut_to_rows(_product(F.pad(x_TI, (0, 0, 0, least - num_rows)), w_IW, bias_W), num_rows)


def cut_to_rows(y_TW: Tensor, num_rows: int) -> Tensor:
    """Cut a matrix to its first rows, in place, and return it; its memory keeps the others.

    Not a view: models of transformers add onto what a linear returns, and autograd refuses that for a view that was
    made inside a function of its own.
    """
    assert y_TW.is_contiguous(), "rows lie one after the other"
    return y_TW.resize_(num_rows, y_TW.shape[1])


def _product(x_TI: Tensor, w_IW: Tensor, bias_W: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, w_IW.t(), bias_W, "none", [], "")
    return found


@functools.cache
def _least_rows(shape: _Shape) -> int | None:
    """Return from how many rows on a row has the same bits; None where the tallest products already differ."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    asked = ASKED_ROWS if shape.inner * shape.width <= MOST_ASKED_WEIGHT else ASKED_ROWS[1:]
    generator = torch.Generator().manual_seed(0)
    # the first pass of a shape asks; a meter of its memory must not count what is asked only once
    with _disable_current_modes():
        w_IW = torch.randn(shape.inner, shape.width, generator=generator)
        if shape.is_transposed:
            w_IW = w_IW.t().contiguous().t()
        x_TI = torch.randn(asked[0], shape.inner, generator=generator)
        expected_TW = _product(x_TI, w_IW, None)
        least = None
        for height in asked[1:]:
            first = int(torch.randint(asked[0] - height + 1, (1,), generator=generator))
            own = slice(first, first + height)
            if not torch.equal(_product(x_TI[own], w_IW, None), expected_TW[own]):
                break
            least = height
    return least
