"""What the fp8 products compute, in plain torch: the definition, and the path of a CPU.

e4m3 (``torch.float8_e4m3fn``) has 3 bits of mantissa, normal values from 2^-6 to 448, smaller ones down to 2^-9, and no
infinity. A row is divided by its largest entry over 448, so its entries keep about 6 % of their value each, down to
1 / 28,672 of the largest; below 1 / 458,752 they become zero.

Shapes:  T rows of the stream · K input width · N output width
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cohort.kernels.row_stable_product import row_stable_product

__all__ = ["CODES", "LARGEST", "fp8_forward", "fp8_grad_input", "quantise_rows", "transposed"]

CODES = torch.float8_e4m3fn
LARGEST = 448.0
# a row of zeros needs a scale that it can be divided by
LEAST = 1e-12


def quantise_rows(x_TK: Tensor, *, factors_K: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return codes [T, K] in e4m3 and scales [T] in float32: ``x * factors`` is about ``codes * scales[:, None]``.

    A row with an entry that is not finite gives codes or a scale whose product is NaN, in that row alone.
    """
    x_TK = x_TK.float()
    if factors_K is not None:
        x_TK = x_TK * factors_K
    if x_TK.shape[1] == 0:
        return x_TK.to(CODES), x_TK.new_ones(x_TK.shape[0])
    # NaN passes through amax and clamp
    scales_T = x_TK.abs().amax(dim=1).clamp(min=LEAST) / LARGEST
    # x / scale and not x * (1 / scale), which may round beyond 448
    return (x_TK / scales_T[:, None]).to(CODES), scales_T


def fp8_forward(
    x_TK: Tensor,
    *,
    codes_NK: Tensor,
    scales_N: Tensor,
    bias_N: Tensor | None = None,
    product: Callable[[Tensor, Tensor], Tensor] = row_stable_product,
) -> Tensor:
    """Return ``x W^T (+ bias)`` [T, N] in x's dtype, with ``W = codes * scales[:, None]`` and x rounded by rows.

    ``product`` multiplies the codes, as float32: x [T, K] by a matrix [K, N].
    """
    codes_TK, scales_T = quantise_rows(x_TK)
    # scales leave the sum: a tensor core adds the products of the codes in float32
    y_TN = product(codes_TK.float(), codes_NK.float().t()).mul_(scales_T[:, None]).mul_(scales_N)
    return (y_TN if bias_N is None else y_TN.add_(bias_N)).to(x_TK.dtype)


def fp8_grad_input(
    dy_TN: Tensor,
    *,
    codes_NK: Tensor,
    scales_N: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = row_stable_product,
) -> Tensor:
    """Return ``dy W`` [T, K] in dy's dtype, from the same codes as the forward product.

    The scales of W stand on the axis that is summed over, so they go into dy before it is rounded:
    ``dy W = (dy * scales) codes``.
    """
    codes_TN, scales_T = quantise_rows(dy_TN, factors_K=scales_N)
    return product(codes_TN.float(), codes_NK.float()).mul_(scales_T[:, None]).to(dy_TN.dtype)


def transposed(codes_NK: Tensor) -> Tensor:
    """Return the codes as [K, N] with N in consecutive bytes."""
    return codes_NK.view(torch.uint8).t().contiguous().view(CODES)
