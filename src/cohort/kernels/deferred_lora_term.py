"""A product whose LoRA terms are returned separately: the kernel that reads the product next adds them as it reads.

Shapes:  T rows of the stream · N output width
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.errors import ShapeError

__all__ = ["Apart", "check_term", "joined", "with_term"]


@dataclass(frozen=True, eq=False)
class Apart:
    """A frozen product and what is to be added to it, outside autograd.

    Attributes:
        term_TN: float32 [T, N]; zeros in rows of no adapter.
    """

    product_TN: Tensor
    term_TN: Tensor


def with_term(y_TN: Tensor, term_TN: Tensor | None) -> Tensor:
    """Return ``y + term``, added in float32 and rounded to ``y``'s dtype; ``y`` itself without a term."""
    return y_TN if term_TN is None else (y_TN.float() + term_TN).to(y_TN.dtype)


def joined(y_TN: Tensor | Apart) -> Tensor:
    """Return the sum, for what cannot add a term as it reads."""
    return with_term(y_TN.product_TN, y_TN.term_TN) if isinstance(y_TN, Apart) else y_TN


def check_term(y_TN: Tensor, term_TN: Tensor) -> None:
    """Refuse a term that a kernel cannot add to ``y`` as it reads.

    Raises:
        ShapeError: it is not float32, contiguous and of ``y``'s shape.
    """
    assert not torch.is_grad_enabled(), "terms are returned separately only where there are no gradients"
    if term_TN.shape != y_TN.shape or term_TN.dtype != torch.float32 or not term_TN.is_contiguous():
        raise ShapeError(
            f"a term {term_TN.dtype} {tuple(term_TN.shape)} cannot be added to {tuple(y_TN.shape)}: it is float32, "
            "contiguous and of the same shape"
        )
