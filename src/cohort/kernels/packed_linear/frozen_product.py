"""What a packed linear needs of its frozen base: two products and nothing else."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["FrozenProduct"]


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
