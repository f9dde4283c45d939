"""What DoRA's magnitudes do to an output: rows and columns of it times a gain, in the forward and the backward pass.

Shapes:  T rows of the stream · L rows of one slot or sample · K input width · N output width of one linear
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.kernels.packed_linear import FrozenProduct

__all__ = ["AddDropped", "ColumnsOf", "Multiplied", "Piece", "Scaled", "Scaling"]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What multiplies the output of one slot's linear: ``gain = m / norm``, all [N]."""

    gain_N: Tensor
    norm_N: Tensor
    bias_N: Tensor
    sink_N: Tensor


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows and columns of an output that one scaling multiplies; ``source`` and its columns are those of u."""

    rows: slice
    columns: slice
    scaling: Scaling
    source: slice
    source_columns: slice


class ColumnsOf:
    """Some columns of a frozen product, which has no bias and a plain weight.

    Satisfies :class:`cohort.kernels.packed_linear.FrozenProduct`. The weight is looked up for each product: that of a
    layer that is streamed moves.
    """

    def __init__(self, frozen: FrozenProduct, columns: slice) -> None:
        self._frozen, self._columns = frozen, columns

    @staticmethod
    def can_be_had(frozen: FrozenProduct) -> bool:
        return getattr(frozen, "plain_weight_NK", None) is not None

    @property
    def in_features(self) -> int:
        return self._frozen.in_features

    @property
    def out_features(self) -> int:
        return int(self._columns.stop - self._columns.start)

    @property
    def dtype(self) -> torch.dtype:
        return self._frozen.dtype

    @property
    def num_bytes(self) -> int:
        return self._weight_NK.nbytes

    @torch.no_grad()
    def forward(self, x_TK: Tensor) -> Tensor:
        return x_TK @ self._weight_NK.t()

    @torch.no_grad()
    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return dy_TN @ self._weight_NK

    @property
    def _weight_NK(self) -> Tensor:
        weight_NK: Tensor = self._frozen.plain_weight_NK[self._columns]  # type: ignore[attr-defined]
        return weight_NK


class Scaled(torch.autograd.Function):
    """``forward(y, pieces)``: each piece of y without its bias, times its gain; gradients of m go into its sink."""

    @staticmethod
    def forward(ctx: Any, y_TN: Tensor, pieces: Sequence[Piece]) -> Tensor:
        ctx.save_for_backward(y_TN)
        ctx.pieces = pieces
        scaled_TN = y_TN.clone()
        for piece in pieces:
            own = piece.scaling
            u_LN = y_TN[piece.rows, piece.columns].to(own.gain_N.dtype) - own.bias_N
            scaled_TN[piece.rows, piece.columns] = (u_LN * own.gain_N + own.bias_N).to(y_TN.dtype)
        return scaled_TN

    @staticmethod
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        (y_TN,) = ctx.saved_tensors
        du_TN = dy_TN.clone()
        for piece in ctx.pieces:
            own = piece.scaling
            dy_LN = dy_TN[piece.rows, piece.columns].to(own.gain_N.dtype)
            u_LN = y_TN[piece.rows, piece.columns].to(own.gain_N.dtype) - own.bias_N
            own.sink_N.add_((dy_LN * u_LN).sum(0) / own.norm_N)
            du_TN[piece.rows, piece.columns] = (dy_LN * own.gain_N).to(dy_TN.dtype)
        return du_TN, None


class Multiplied(torch.autograd.Function):
    """What :class:`Scaled` computes, without a bias and with fewer passes over memory.

    The terms of a magnitude's gradient are rounded to the stream's dtype before they are added up in float32: by as
    much as the two factors of each already are.
    """

    @staticmethod
    def forward(ctx: Any, y_TN: Tensor, pieces: Sequence[Piece]) -> Tensor:
        ctx.save_for_backward(y_TN)
        ctx.pieces = pieces
        return _times_gains(y_TN, pieces)

    @staticmethod
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        (y_TN,) = ctx.saved_tensors
        for piece in ctx.pieces:
            own = piece.scaling
            terms_LN = dy_TN[piece.rows, piece.columns] * y_TN[piece.rows, piece.columns]
            own.sink_N.addcdiv_(terms_LN.sum(0, dtype=own.norm_N.dtype), own.norm_N)
        return _times_gains(dy_TN, ctx.pieces), None


def _times_gains(given_TN: Tensor, pieces: Sequence[Piece]) -> Tensor:
    """Return a copy whose pieces are multiplied by their gains; each is read and written once."""
    covered = sum(given_TN[piece.rows, piece.columns].numel() for piece in pieces)
    found_TN = torch.empty_like(given_TN) if covered == given_TN.numel() else given_TN.clone()
    for piece in pieces:
        place = (piece.rows, piece.columns)
        torch.mul(given_TN[place], piece.scaling.gain_N, out=found_TN[place])
    return found_TN


class AddDropped(torch.autograd.Function):
    """``forward(y, u, pieces)``: y plus ``(gain - 1)`` times u without its bias on each piece."""

    @staticmethod
    def forward(ctx: Any, y_TN: Tensor, u_TN: Tensor, pieces: Sequence[Piece]) -> Tensor:
        ctx.save_for_backward(u_TN)
        ctx.pieces = pieces
        added_TN = y_TN.clone()
        for piece in pieces:
            own = piece.scaling
            u_LN = u_TN[piece.source, piece.source_columns].to(own.gain_N.dtype) - own.bias_N
            added_TN[piece.rows, piece.columns] += ((own.gain_N - 1) * u_LN).to(y_TN.dtype)
        return added_TN

    @staticmethod
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        (u_TN,) = ctx.saved_tensors
        du_TN = torch.zeros_like(u_TN)
        for piece in ctx.pieces:
            own = piece.scaling
            dy_LN = dy_TN[piece.rows, piece.columns].to(own.gain_N.dtype)
            u_LN = u_TN[piece.source, piece.source_columns].to(own.gain_N.dtype) - own.bias_N
            own.sink_N.add_((dy_LN * u_LN).sum(0) / own.norm_N)
            du_TN[piece.source, piece.source_columns] = ((own.gain_N - 1) * dy_LN).to(dy_TN.dtype)
        return dy_TN, du_TN, None
