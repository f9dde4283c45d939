"""A product in which a row's bits do not depend on the other rows, on a CPU.

Shapes:  T rows · N inner width · K output width
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["row_stable_product"]

# A BLAS may cut longer sums into parts, and where it cuts depends on the number of rows and threads: seen with MKL for
# inner widths from 1,000 on (on one Xeon; on another it never showed), never up to 512.
INNER_BLOCK = 512


def row_stable_product(x_TN: Tensor, w_NK: Tensor, bias_K: Tensor | None = None) -> Tensor:
    """Return ``x w (+ bias)`` [T, K]. On a CPU sums longer than 512 are added up in blocks, in order.

    A row's bits are then the same in any stream of a multiple of 16 rows, at least 32 of them, and for any number of
    threads.
    """
    inner = w_NK.shape[0]
    if x_TN.device.type != "cpu" or inner <= INNER_BLOCK:
        return F.linear(x_TN, w_NK.t(), bias_K)
    blocks = [slice(start, start + INNER_BLOCK) for start in range(0, inner, INNER_BLOCK)]
    y_TK = F.linear(x_TN[:, blocks[0]], w_NK[blocks[0]].t(), bias_K)
    for block in blocks[1:]:
        y_TK.addmm_(x_TN[:, block], w_NK[block])
    return y_TK
