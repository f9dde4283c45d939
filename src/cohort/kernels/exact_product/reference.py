"""The product in plain torch: the definition, and what a CPU computes.

Shapes:  M rows · N, K output and input width of the weight
"""

from __future__ import annotations

from torch import Tensor

from cohort.kernels.exact_product.agreed_shapes import AgreedShapes
from cohort.kernels.row_stable_product import row_stable_product

__all__ = ["product"]


def product(
    x_MI: Tensor, weight_NK: Tensor, bias_N: Tensor | None, *, forward: bool, agreed: AgreedShapes | None = None
) -> Tensor:
    """Return ``x W^T (+ bias)``, or ``x W``; no BLAS is asked."""
    del agreed
    return row_stable_product(x_MI, weight_NK.t() if forward else weight_NK, bias_N)
