"""A product in which a row's bits do not depend on the other rows, on a CPU.

Shapes:  T rows · N inner width · K output width
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.core.process.blas_sums import mkl_takes_avx512
from cohort.kernels.onednn_product import cut_to_rows, onednn_product

__all__ = ["product_in_blocks", "row_stable_product"]

# A BLAS may cut longer sums into parts, and where it cuts depends on the number of rows and threads: seen with MKL for
# inner widths from 1,000 on (on one Xeon; on another it never showed), never up to 512.
INNER_BLOCK = 512
# of rows in which MKL was seen to give a row its own bits
ROW_MULTIPLE = 16
LEAST_ROWS = 32


def row_stable_product(x_TN: Tensor, w_NK: Tensor, bias_K: Tensor | None = None) -> Tensor:
    """Return ``x w (+ bias)`` [T, K]; outside autograd.

    On a CPU without the fastest MKL, oneDNN multiplies float32 where it gives a row the same bits in any number of
    rows. Elsewhere the BLAS does, with sums longer than 512 in blocks, in order: a row's bits are then the same in any
    product of a multiple of 16 rows, at least 32 of them, and for any number of threads. Other numbers of rows are
    filled up to that.
    """
    if x_TN.device.type != "cpu":
        return F.linear(x_TN, w_NK.t(), bias_K)
    if not _mkl_leads() and (found_TK := onednn_product(x_TN, w_NK, bias_K)) is not None:
        return found_TK
    num_rows = x_TN.shape[0]
    filled = max(-(-num_rows // ROW_MULTIPLE) * ROW_MULTIPLE, LEAST_ROWS)
    if num_rows in (0, filled):
        return product_in_blocks(x_TN, w_NK, bias_K)
    return cut_to_rows(product_in_blocks(F.pad(x_TN, (0, 0, 0, filled - num_rows)), w_NK, bias_K), num_rows)


def product_in_blocks(x_TN: Tensor, w_NK: Tensor, bias_K: Tensor | None = None) -> Tensor:
    """Return ``x w (+ bias)`` [T, K] by torch's BLAS, with sums longer than 512 in blocks."""
    inner = w_NK.shape[0]
    if inner <= INNER_BLOCK and bias_K is None:
        # what the next line comes to, by fewer calls
        return torch.mm(x_TN, w_NK)
    if inner <= INNER_BLOCK:
        return F.linear(x_TN, w_NK.t(), bias_K)
    blocks = [slice(start, start + INNER_BLOCK) for start in range(0, inner, INNER_BLOCK)]
    y_TK = F.linear(x_TN[:, blocks[0]], w_NK[blocks[0]].t(), bias_K)
    for block in blocks[1:]:
        y_TK.addmm_(x_TN[:, block], w_NK[block])
    return y_TK


@functools.cache
def _mkl_leads() -> bool:
    # by the processor, not by a clock: on a Xeon with AVX-512 MKL takes 20 to 45 us less than oneDNN at 64 rows, of 50
    # to 150, as oneDNN arranges the weight in each call; at 2,048 rows the two are even
    return torch.backends.mkl.is_available() and mkl_takes_avx512()
