"""The definition: each new position alone, over the pages of its own sequence.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width · R rows of the pool
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["paged_attention_reference"]


def paged_attention_reference(
    q_THE: Tensor,
    k_RGE: Tensor,
    v_RGE: Tensor,
    *,
    tiles_N4: Tensor,
    tables_SP: Tensor,
    page_rows: int,
    window: int | None,
) -> Tensor:
    """Return o [T, H, E]; zeros in rows of no tile. See :func:`~cohort.kernels.paged_attention.paged_attention`."""
    o_THE = torch.zeros_like(q_THE)
    group = q_THE.shape[1] // k_RGE.shape[1]
    scale = q_THE.shape[2] ** -0.5
    for row, count, position, sequence in tiles_N4.tolist():
        for offset in range(count):
            newest = position + offset
            first = 0 if window is None else max(0, newest + 1 - window)
            positions = torch.arange(first, newest + 1, device=q_THE.device)
            rows = tables_SP[sequence, positions // page_rows].long() * page_rows + positions % page_rows
            k_LHE, v_LHE = (x[rows].float().repeat_interleave(group, dim=1) for x in (k_RGE, v_RGE))
            scores_HL = torch.einsum("he,lhe->hl", q_THE[row + offset].float(), k_LHE) * scale
            o_THE[row + offset] = torch.einsum("hl,lhe->he", scores_HL.softmax(1), v_LHE).to(o_THE.dtype)
    return o_THE
