"""Rows of a frozen weight as numbers, whatever format it is stored in.

Shapes:  K input width · N output width of the whole product
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.packed_linear.frozen_product import FrozenProduct

__all__ = ["dense_rows"]

# rows of one product, so that the one-hot rows of a wide weight do not take more memory than it
_CHUNK = 1024


@torch.no_grad()
def dense_rows(frozen: FrozenProduct, columns: slice, *, device: torch.device) -> Tensor:
    """Return the rows of W that make the output columns ``columns``, [columns, K] in the product's dtype.

    Read from a plain weight; else ``dy W`` of one-hot rows, which any format offers and which rounds nothing: each sum
    has one term that is not zero.
    """
    plain: Tensor | None = getattr(frozen, "plain_weight_NK", None)
    if plain is not None:
        return plain[columns].clone()
    rows = []
    for start in range(columns.start, columns.stop, _CHUNK):
        picked = torch.arange(start, min(start + _CHUNK, columns.stop), device=device)
        one_hot_CN = torch.zeros(len(picked), frozen.out_features, dtype=frozen.dtype, device=device)
        one_hot_CN[torch.arange(len(picked), device=device), picked] = 1.0
        rows.append(frozen.grad_input(one_hot_CN))
    return torch.cat(rows)
