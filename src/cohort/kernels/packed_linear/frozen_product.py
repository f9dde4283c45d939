"""What a packed linear needs of its frozen base: two products, and what it may offer beyond them.

Shapes:  T rows of the stream · K input width · N output width · C spare columns
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from cohort.kernels.exact_product import AgreedShapes
from cohort.kernels.fp8_product import Fp8Rows, HandedGradient

__all__ = [
    "AccumulatingProduct",
    "ArrangeableProduct",
    "AskingProduct",
    "AugmentedProduct",
    "CodedGradient",
    "CodedProduct",
    "ExactProduct",
    "FrozenProduct",
    "GivenGradient",
    "PlainProduct",
    "StreamableProduct",
    "agreed_shapes",
    "can_accumulate",
    "can_arrange",
    "can_augment",
    "can_be_exact",
    "can_reserve",
    "can_stream",
    "can_take_codes",
    "can_take_gradient_codes",
    "handed_gradient_of",
    "may_ask",
    "plain_weight",
]


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
    def dtype(self) -> torch.dtype:
        """Dtype of inputs and outputs; the weight may be stored in another."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes the stored weight and its bias occupy."""
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
    def can_accumulate(self) -> bool: ...

    def add_forward(self, x_TK: Tensor, y_TN: Tensor) -> None:
        """Add x W^T to y in place."""
        ...

    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        """Add dy W to dx in place."""
        ...


def can_accumulate(frozen: FrozenProduct) -> TypeGuard[AccumulatingProduct]:
    return bool(getattr(frozen, "can_accumulate", False))


class ExactProduct(FrozenProduct, Protocol):
    """A frozen product that can be told to give a row the same bits in any stream."""

    is_exact: bool
    """Whether it does so on a GPU; on a CPU every product does."""


def can_be_exact(frozen: FrozenProduct) -> TypeGuard[ExactProduct]:
    return hasattr(frozen, "is_exact")


class AskingProduct(ExactProduct, Protocol):
    """An exact product that the BLAS may compute where it is known to give the same bits."""

    agreed_shapes: AgreedShapes | None
    """What is known, shared by the products of a model; with None the BLAS computes nothing."""


def may_ask(frozen: FrozenProduct) -> TypeGuard[AskingProduct]:
    return hasattr(frozen, "agreed_shapes")


def agreed_shapes(products: Iterable[FrozenProduct]) -> AgreedShapes | None:
    """Return what the linears of a model know of the BLAS, which they share; None where none may ask it."""
    return next((product.agreed_shapes for product in products if may_ask(product)), None)


class PlainProduct(FrozenProduct, Protocol):
    """A frozen product whose weight may be read as it is, so that a kernel can put the LoRA term inside the product."""

    @property
    def plain_weight_NK(self) -> Tensor | None:
        """W [N, K] when the product is exactly ``x W^T`` in the weight's own dtype, else None."""
        ...


def plain_weight(frozen: FrozenProduct) -> Tensor | None:
    """Return the 16-bit weight [N, K] that a kernel may multiply by itself, or None for any other format."""
    weight: Tensor | None = getattr(frozen, "plain_weight_NK", None)
    if weight is None or weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    return weight


class AugmentedProduct(FrozenProduct, Protocol):
    """A frozen product whose weight lies in memory with further columns that a pass may fill for itself."""

    @property
    def spare_NC(self) -> Tensor | None:
        """The columns [N, C] behind W, of any content; None where there are none."""
        ...

    def reserve_columns(self, count: int) -> None:
        """Lay the weight out with ``count`` spare columns; it moves unless it has as many."""
        ...

    def forward_augmented(self, x_TX: Tensor) -> Tensor:
        """Return the product [T, N] of x [T, K + c] with W and the first c columns behind it (+ bias)."""
        ...


def can_augment(frozen: FrozenProduct) -> TypeGuard[AugmentedProduct]:
    """Return whether the weight of ``frozen`` has spare columns."""
    return getattr(frozen, "spare_NC", None) is not None


def can_reserve(frozen: FrozenProduct) -> TypeGuard[AugmentedProduct]:
    """Return whether the weight of ``frozen`` can be laid out with spare columns."""
    return hasattr(frozen, "reserve_columns")


class StreamableProduct(FrozenProduct, Protocol):
    """A frozen product whose weight may stand in a buffer that holds it only while it is needed."""

    @property
    def streamed_weights(self) -> tuple[Tensor, ...]:
        """The tensors of the weight, each contiguous and of any dtype; what is small (a bias) may stay resident."""
        ...

    def place_weights(self, weights: Sequence[Tensor]) -> None:
        """Read these tensors from now on; they are like those of :attr:`streamed_weights`."""
        ...


def can_stream(frozen: FrozenProduct) -> TypeGuard[StreamableProduct]:
    return hasattr(frozen, "place_weights")


class ArrangeableProduct(FrozenProduct, Protocol):
    """A frozen product that can keep a copy of its weight by which a CPU multiplies few rows faster."""

    def arrange_for_few_rows(self) -> None:
        """Keep such a copy from the first product of few rows on, where the weight is float32 on a CPU."""
        ...


def can_arrange(frozen: FrozenProduct) -> TypeGuard[ArrangeableProduct]:
    return hasattr(frozen, "arrange_for_few_rows")


class CodedProduct(FrozenProduct, Protocol):
    """A frozen product that multiplies rounded rows, and takes those that the kernel before it has rounded."""

    def code_room(self, like: Tensor) -> Fp8Rows | None:
        """Return where the codes of an input [T, K] go; None where rows like these are not multiplied as codes."""
        ...

    def reading(self, codes: Fp8Rows) -> FrozenProduct:
        """Return this product for the one input whose codes these are; they are let go once it was multiplied."""
        ...


def can_take_codes(frozen: FrozenProduct) -> TypeGuard[CodedProduct]:
    return hasattr(frozen, "code_room")


class CodedGradient(FrozenProduct, Protocol):
    """A frozen product whose gradient multiplies rounded rows, and takes those that the kernels before it rounded."""

    def gradient_factors(self, like: Tensor) -> Tensor | None:
        """Return the float32 factors [N] of a gradient's columns, multiplied in before its rows are rounded.

        None where rows such as ``like`` are not multiplied as codes.
        """
        ...

    def grad_input(self, dy_TN: Tensor, codes: Fp8Rows | None = None) -> Tensor:
        """Return dx = dy W, [T, K]; ``codes`` are those of dy times its columns' factors."""
        ...


def can_take_gradient_codes(frozen: FrozenProduct) -> TypeGuard[CodedGradient]:
    return hasattr(frozen, "gradient_factors")


def handed_gradient_of(frozen: FrozenProduct) -> HandedGradient | None:
    """Return what a node over ``frozen`` is to be found by, for codes of its gradient; None where it takes none."""
    return HandedGradient(frozen.gradient_factors) if can_take_gradient_codes(frozen) else None


@dataclass(frozen=True, eq=False)
class GivenGradient:
    """A frozen product for the one backward pass whose gradient's codes these are."""

    frozen: CodedGradient
    codes: Fp8Rows

    @property
    def in_features(self) -> int:
        return self.frozen.in_features

    @property
    def out_features(self) -> int:
        return self.frozen.out_features

    @property
    def dtype(self) -> torch.dtype:
        return self.frozen.dtype

    @property
    def num_bytes(self) -> int:
        return self.frozen.num_bytes

    def forward(self, x_TK: Tensor) -> Tensor:
        return self.frozen.forward(x_TK)

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return self.frozen.grad_input(dy_TN, self.codes)

    @staticmethod
    def of(frozen: FrozenProduct, handed: HandedGradient | None, dy_TN: Tensor) -> FrozenProduct:
        """Return ``frozen`` with the codes of ``dy`` where they were handed; ``frozen`` itself elsewhere."""
        codes = None if handed is None else handed.take(dy_TN)
        return frozen if codes is None or not can_take_gradient_codes(frozen) else GivenGradient(frozen, codes)
