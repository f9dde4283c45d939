"""What a packed linear needs of its frozen base: two products, and where it has them their accumulating forms."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from torch import Tensor

__all__ = ["AccumulatingProduct", "FrozenProduct", "can_accumulate"]


class FrozenProduct(Protocol):
    """``y = x W^T (+ bias)`` with a weight that never gets a gradient, in whatever format it is stored."""

    @property
    def in_features(self) -> int:
        """K."""
        ...

    @property
    def out_features(self) -> int:
        """N."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes the stored weight occupies."""
        ...

    def forward(self, x_TK: Tensor) -> Tensor:
        """Return y [T, N]; outside autograd."""
        ...

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        """Return dx = dy W, [T, K]; outside autograd."""
        ...


class AccumulatingProduct(FrozenProduct, Protocol):
    """A frozen product that can add onto its output, which saves the LoRA term a second pass over that output."""

    @property
    def can_accumulate(self) -> bool:
        """Whether the methods below work for this instance."""
        ...

    def add_forward(self, x_TK: Tensor, y_TN: Tensor) -> None:
        """Add x W^T to y in place."""
        ...

    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        """Add dy W to dx in place."""
        ...


def can_accumulate(frozen: FrozenProduct) -> TypeGuard[AccumulatingProduct]:
    """Tell whether ``frozen`` adds onto its output."""
    return bool(getattr(frozen, "can_accumulate", False))
