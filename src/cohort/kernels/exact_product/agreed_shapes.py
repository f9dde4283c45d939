"""What a model's exact products know of the BLAS of their machine."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

__all__ = ["AgreedShapes", "AskedProduct"]


@dataclass(frozen=True, kw_only=True)
class AskedProduct:
    """What a BLAS chooses its kernel by, but for the number of rows.

    Attributes:
        weight_shape: (N, K) of the weight.
        forward: Whether x has K columns, and the product N.
    """

    weight_shape: tuple[int, int]
    forward: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def width(self) -> int:
        """Columns of the product."""
        return self.weight_shape[0 if self.forward else 1]

    @property
    def inner_width(self) -> int:
        """Columns of x."""
        return self.weight_shape[1 if self.forward else 0]

    def name(self, num_rows: int) -> str:
        """Return what stands for the product of ``num_rows`` rows in a file that names the GPU by itself."""
        return f"{num_rows} {self.weight_shape[0]} {self.weight_shape[1]} {self.forward} {self.dtype}"


@dataclass(frozen=True, eq=False)
class AgreedShapes:
    """Answers of the BLAS, shared by the linears of a model; a loss head and a router have their own.

    Attributes:
        answers: By the number of rows and the product: whether the BLAS gave the very bits.
        products: What was computed at numbers of rows that come again.
    """

    answers: dict[tuple[int, AskedProduct], bool] = field(default_factory=dict)
    products: set[AskedProduct] = field(default_factory=set)
