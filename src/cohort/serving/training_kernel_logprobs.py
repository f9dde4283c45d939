"""Logarithms of drawn tokens by the kernel that prices them in training passes: the same bits from the same logits.

Shapes:  B sequences · P rows that are priced, padded · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.backend import choose_backend, implementation

__all__ = ["priced_logprobs"]

# rows behind those of sequences take what is left over of the last vector of an elementwise operation
_ROW_MULTIPLE = 16


def priced_logprobs(
    logits_BV: Tensor, *, rows: Sequence[int], picked: Sequence[int], temperatures: Sequence[float]
) -> list[float]:
    """Return the logarithm of the token ``picked`` in each of ``rows``, its logits divided by the row's temperature."""
    count, device = len(rows), logits_BV.device
    padding = -(-(count + 1) // _ROW_MULTIPLE) * _ROW_MULTIPLE - count
    logits_PV = F.pad(logits_BV.index_select(0, torch.tensor(rows, device=device)), (0, 0, 0, padding))
    targets_P = F.pad(torch.tensor(picked, device=device), (0, padding), value=-100)
    scales_P = None
    if any(temperature != 1.0 for temperature in temperatures):
        scales_B = torch.tensor([1.0 / temperature for temperature in temperatures], device=device)
        scales_P = F.pad(scales_B, (0, padding), value=1.0)
    kernels = implementation("cross_entropy", choose_backend(logits_BV))
    losses_P = kernels.cross_entropy_rows(logits_PV, targets_C=targets_P, with_gradient=False, scales_C=scales_P)
    return [-loss for loss in losses_P[:count].tolist()]
