"""Codes of a gradient on their way between two nodes of autograd: from its maker to the product that multiplies them.

Autograd carries tensors alone, so the node of a product keeps a :class:`HandedGradient`, and the node that makes the
product's gradient finds it behind its own input. Whatever lies between the two, or adds to the gradient, leaves the
codes behind: they are of one tensor as it was, and are not taken for another.

Shapes:  T rows · N output width of the product
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cohort.kernels.fp8_product.op import Fp8Rows, empty_rows
from cohort.kernels.fp8_product.reference import quantise_rows

__all__ = ["CodeRoom", "HandedGradient", "handed_behind", "write_codes"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeRoom:
    """Where a kernel writes the codes of a gradient that it makes.

    Attributes:
        factors_N: float32; multiplied into the gradient's columns before its rows are rounded.
    """

    factors_N: Tensor
    rows: Fp8Rows


class HandedGradient:
    """What a product's node is handed by the node that makes its gradient."""

    def __init__(self, factors_of: Callable[[Tensor], Tensor | None]) -> None:
        """Begin with nothing; ``factors_of`` gives the factors for gradients like a tensor, None where codes do not
        serve.
        """
        self._factors_of = factors_of
        self._gradient_TN: Tensor | None = None
        self._version = 0
        self._rows: Fp8Rows | None = None

    def room(self, like: Tensor, *, width: int) -> CodeRoom | None:
        """Return room for the codes of a gradient [T, ``width``]; None where its product multiplies no codes.

        ``like`` [T, ...] has its dtype and device.
        """
        factors_N = self._factors_of(like)
        if factors_N is None or factors_N.shape[0] != width:
            return None
        return CodeRoom(factors_N=factors_N, rows=empty_rows(like, width=width))

    def hand(self, gradient_TN: Tensor, room: CodeRoom) -> None:
        self._gradient_TN, self._version, self._rows = gradient_TN, gradient_TN._version, room.rows

    def take(self, gradient_TN: Tensor) -> Fp8Rows | None:
        """Return the codes if they are of this very gradient as it is now, and let go of them in any case."""
        own, rows = self._gradient_TN, self._rows
        self._gradient_TN = self._rows = None
        if own is None or own.data_ptr() != gradient_TN.data_ptr() or own._version != self._version:
            return None
        same = own.shape == gradient_TN.shape and own.stride() == gradient_TN.stride()
        return rows if same and gradient_TN._version == self._version else None


def handed_behind(ctx: Any) -> HandedGradient | None:
    """Return what the node takes that made the first input of ``ctx``; None where it takes nothing."""
    behind = ctx.next_functions[0][0] if ctx.next_functions else None
    found: HandedGradient | None = getattr(behind, "handed_gradient", None)
    return found


def write_codes(gradient_TN: Tensor, room: CodeRoom) -> None:
    """Write a gradient's codes by the definition."""
    codes_TN, scales_T = quantise_rows(gradient_TN, factors_K=room.factors_N)
    room.rows.codes_TK.copy_(codes_TN)
    room.rows.scales_T.copy_(scales_T)
