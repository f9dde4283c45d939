"""Draws and logarithms in plain torch, some rows at a time: a row in float64 takes 8 bytes a token, several times.

Shapes:  B rows of logits · C rows that are asked for · V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["draw_tokens", "picked_logprobs"]

# of the float64 numbers of the rows that are computed at once; a few such copies exist at a time
WORKING_BYTES = 1 << 28


def draw_tokens(logits_BV: Tensor, *, rows_C: Tensor, temperatures_C: Tensor, draws_C: Tensor) -> Tensor:
    """Invert the cumulative distribution in the order of ids: sorting would take most of the time."""
    found_C = torch.empty_like(rows_C)
    for part in _parts(rows_C, vocab_size=logits_BV.shape[1]):
        scaled_PV = torch.nan_to_num(logits_BV.index_select(0, rows_C[part]).double())
        scaled_PV /= temperatures_C[part, None]
        cumulative_PV = scaled_PV.softmax(dim=1).cumsum(dim=1)
        totals_P1 = cumulative_PV[:, -1:].clone()
        found_P1 = torch.searchsorted(cumulative_PV, draws_C[part, None] * totals_P1, right=True)
        # rounding may carry the last draw one past the last token that has a probability
        last_P1 = (cumulative_PV < totals_P1).sum(dim=1, keepdim=True)
        found_C[part] = torch.minimum(found_P1, last_P1)[:, 0]
    return found_C


def picked_logprobs(logits_BV: Tensor, *, rows_C: Tensor, tokens_C: Tensor, temperatures_C: Tensor) -> Tensor:
    """Return the logarithms [C]."""
    found_C = torch.empty(len(rows_C), dtype=torch.float64, device=logits_BV.device)
    for part in _parts(rows_C, vocab_size=logits_BV.shape[1]):
        scaled_PV = logits_BV.index_select(0, rows_C[part]).double()
        scaled_PV /= temperatures_C[part, None]
        found_C[part] = scaled_PV.log_softmax(dim=1).gather(1, tokens_C[part, None])[:, 0]
    return found_C


def _parts(rows_C: Tensor, *, vocab_size: int) -> Iterator[slice]:
    """Cut rows into as many as one working copy of theirs may have: no row depends on the others."""
    most = max(1, WORKING_BYTES // (8 * vocab_size))
    return (slice(start, min(start + most, len(rows_C))) for start in range(0, len(rows_C), most))
