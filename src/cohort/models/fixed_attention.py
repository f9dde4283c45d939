"""Causal attention over streams whose sequences change while every size stays: what a CUDA graph can record.

Shapes:  T rows of the stream · P padded rows · S sequences · L padded length · H heads · E head width
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.models.attention import causal_attention
from cohort.models.config import AttentionRule

__all__ = ["FixedAttention", "fixed_attention_rows"]


class FixedAttention:
    """Causal attention within at most S sequences of at most L rows each, one batched call.

    Satisfies :class:`cohort.models.attention.AttentionContext`. Which stream row is where is read from two tensors on
    the device, filled from :func:`fixed_attention_rows` before each pass. The last row of the stream must be filler:
    it stands in for everything that is padding. It is finite and its gradient zero, so padding carries nothing on.
    """

    def __init__(self, *, num_sequences: int, length: int, rows_P: Tensor, places_T: Tensor) -> None:
        """Read the maps from ``rows_P`` (stream row of each padded row) and ``places_T`` (padded row of each row)."""
        if len(rows_P) != (num_sequences + 1) * length:
            raise ShapeError(f"{len(rows_P)} padded rows are not {num_sequences} + 1 sequences of {length}")
        self._count, self._length = num_sequences + 1, length
        self._rows_P, self._places_T = rows_P, places_T

    @property
    def num_positions(self) -> int:
        return self._length

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        """Return o [T, H, E]; any finite numbers in the rows of no sequence. All layers attend alike."""
        del layer_index
        q, k, v = (
            _Pick.apply(rows, self._rows_P, self._places_T).view(self._count, self._length, *rows.shape[1:])
            for rows in (q_THE, k_TGE, v_TGE)
        )
        o_PHE = causal_attention(q, k, v, rule=rule).reshape(-1, *q_THE.shape[1:])
        o_THE: Tensor = _Pick.apply(o_PHE, self._places_T, self._rows_P)
        return o_THE


def fixed_attention_rows(
    offsets: tuple[int, ...], *, num_rows: int, num_sequences: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what :class:`FixedAttention` reads for sequences at ``offsets``: stream row by padded row, and back.

    Raises:
        ShapeError: too many sequences, one too long, or no filler row at the end.
    """
    lengths = np.diff(np.asarray(offsets, dtype=np.int64))
    if len(lengths) > num_sequences or (len(lengths) and lengths.max() > length) or offsets[-1] >= num_rows:
        raise ShapeError(
            f"{len(lengths)} sequences of up to {lengths.max(initial=0)} rows, {offsets[-1]} in all, do not fit "
            f"{num_sequences} of {length} in a stream of {num_rows} with filler at its end"
        )
    rows_P = np.full((num_sequences + 1) * length, num_rows - 1, dtype=np.int64)
    # the last padded sequence is padding throughout
    places_T = np.full(num_rows, len(rows_P) - 1, dtype=np.int64)
    for index, (start, stop) in enumerate(pairwise(offsets)):
        first = index * length
        rows_P[first : first + stop - start] = np.arange(start, stop)
        places_T[start:stop] = np.arange(first, first + stop - start)
    return rows_P, places_T


class _Pick(torch.autograd.Function):
    """Rows picked by index; backward picks as well: each row that is read twice is padding, whose gradient is zero."""

    @staticmethod
    def forward(ctx: Any, x_AXE: Tensor, index_B: Tensor, back_A: Tensor) -> Tensor:
        ctx.back_A = back_A
        return x_AXE.index_select(0, index_B)

    @staticmethod
    def backward(ctx: Any, dy_BXE: Tensor) -> tuple[Tensor, None, None]:
        return dy_BXE.index_select(0, ctx.back_A), None, None
