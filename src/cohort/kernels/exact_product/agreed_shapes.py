"""What a model's exact products know of the BLAS of their machine."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AgreedShapes"]


@dataclass(frozen=True, eq=False)
class AgreedShapes:
    """Answers of the BLAS, shared by the products of one model: most of its layers have the same shapes.

    Attributes:
        answers: By the shape and direction of a product: whether the BLAS gave the very bits.
    """

    answers: dict[tuple[object, ...], bool] = field(default_factory=dict)
