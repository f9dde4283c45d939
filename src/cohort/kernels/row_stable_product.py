"""A product in which a row's bits do not depend on the other rows, on a CPU.

Shapes:  T rows · N inner width · K output width
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.onednn_product import onednn_product

__all__ = ["row_stable_product"]

# A BLAS may cut longer sums into parts, and where it cuts depends on the number of rows and threads: seen with MKL for
# inner widths from 1,000 on (on one Xeon; on another it never showed), never up to 512.
INNER_BLOCK = 512


def row_stable_product(x_TN: Tensor, w_NK: Tensor, bias_K: Tensor | None = None) -> Tensor:
    """Return ``x w (+ bias)`` [T, K]; outside autograd.

    On a CPU oneDNN multiplies float32 where it gives a row the same bits in any number of rows. Elsewhere the BLAS
    does, with sums longer than 512 in blocks, in order: a row's bits are then the same in any stream of a multiple of
    16 rows, at least 32 of them, and for any number of threads.
    """
    inner = w_NK.shape[0]
    if x_TN.device.type == "cpu" and (found_TK := onednn_product(x_TN, w_NK, bias_K)) is not None:
        return found_TK
    if x_TN.device.type != "cpu" or inner <= INNER_BLOCK:
        return F.linear(x_TN, w_NK.t(), bias_K)
    blocks = [slice(start, start + INNER_BLOCK) for start in range(0, inner, INNER_BLOCK)]
    y_TK = F.linear(x_TN[:, blocks[0]], w_NK[blocks[0]].t(), bias_K)
    for block in blocks[1:]:
        y_TK.addmm_(x_TN[:, block], w_NK[block])
    return y_TK
