"""The public ops: products of 16-bit rows with a weight in e4m3, by the GPU's own 8-bit products where it has them.

Shapes:  T rows of the stream · K input width · N output width
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.exact_product import exact_product
from cohort.kernels.fp8_product import reference
from cohort.kernels.fp8_product.reference import CODES
from cohort.kernels.row_stable_product import row_stable_product

__all__ = [
    "Fp8Rows",
    "empty_rows",
    "fp8_forward",
    "fp8_grad_input",
    "fp8_problem",
    "has_product",
    "quantise_rows",
    "transposed",
]

# Ada and Hopper were the first with 8-bit floats
LEAST_CAPABILITY = (8, 9)
# a tensor core reads 16 codes at a time, along both axes of the weight
ALIGNMENT = 16
# Tensor cores of Hopper add up e4m3 products with about 14 bits unless partial sums move to float32 registers every 128
# products, which costs a quarter more time. The fast sums' error, 0.002 to 0.005 of the result, is a tenth of what the
# rounding of rows leaves, 0.037, so both products take them, as torchao's row-wise recipe does.
FAST_SUM_FORWARD, FAST_SUM_BACKWARD = True, True


@dataclass(frozen=True, kw_only=True, eq=False)
class Fp8Rows:
    """Rows in e4m3 [T, K] with a float32 scale each [T]."""

    codes_TK: Tensor
    scales_T: Tensor


def empty_rows(like_TD: Tensor, *, width: int) -> Fp8Rows:
    """Return rows [T, ``width``] that a kernel is to write, on the device of ``like``."""
    num_rows, device = like_TD.shape[0], like_TD.device
    return Fp8Rows(
        codes_TK=torch.empty(num_rows, width, dtype=CODES, device=device),
        scales_T=torch.empty(num_rows, dtype=torch.float32, device=device),
    )


def fp8_problem(device: torch.device) -> str | None:
    """Return why a device cannot multiply 8-bit floats; None where it can. A CPU computes their definition."""
    if device.type == "cpu":
        return None
    if device.type != "cuda" or torch.version.hip is not None:
        return f"a device of type {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability >= LEAST_CAPABILITY:
        return None
    return f"{torch.cuda.get_device_name(device)}, of compute capability {capability[0]}.{capability[1]}"


@torch.no_grad()
def quantise_rows(x_TK: Tensor, *, factors_K: Tensor | None = None, backend: Backend | None = None) -> Fp8Rows:
    """Return x, times ``factors`` by column where given, rounded to e4m3 with a scale for each row.

    A row's codes depend on that row alone. One with an entry that is not finite gives NaN in its own products only.

    Args:
        x_TK: Of any dtype, its rows with consecutive entries.
        factors_K: float32 [K].

    Raises:
        ShapeError: ``x`` is no matrix, or the factors are not one for each column.
    """
    if x_TK.dim() != 2 or (factors_K is not None and factors_K.shape != x_TK.shape[1:]):
        wide = "" if factors_K is None else f" with factors {tuple(factors_K.shape)}"
        raise ShapeError(f"x is {tuple(x_TK.shape)}{wide}; it is [T, K], with one factor for each of K columns")
    chosen = choose_backend(x_TK, backend=backend)
    codes_TK, scales_T = implementation("fp8_product", chosen).quantise_rows(x_TK, factors_K=factors_K)
    return Fp8Rows(codes_TK=codes_TK, scales_T=scales_T)


@torch.no_grad()
def transposed(codes_NK: Tensor) -> Tensor:
    """Return a copy of the codes as [K, N], as a tensor core reads them for a gradient."""
    # the dtype of codes says nothing about the backend: their device does
    like = torch.empty(0, dtype=torch.bfloat16, device=codes_NK.device)
    chosen = choose_backend(like) if codes_NK.device.type != "cpu" else Backend.REFERENCE
    copied: Tensor = implementation("fp8_product", chosen).transposed(codes_NK)
    return copied


@torch.no_grad()
def fp8_forward(
    x_TK: Tensor,
    *,
    codes_NK: Tensor,
    scales_N: Tensor,
    bias_N: Tensor | None = None,
    rows: Fp8Rows | None = None,
    exact: bool = False,
) -> Tensor:
    """Return ``x W^T (+ bias)`` [T, N] in x's dtype, x rounded to e4m3 by rows; outside autograd.

    Args:
        codes_NK, scales_N: ``W = codes * scales[:, None]``.
        rows: ``x`` as :func:`quantise_rows` gives it, where that was computed already.
        exact: Give a row the same bits in any stream, on a GPU, too: each entry is one sum over K in one order.
    """
    if not has_product(x_TK, codes_NK):
        product = _exact_float_product if exact else row_stable_product
        return reference.fp8_forward(x_TK, codes_NK=codes_NK, scales_N=scales_N, bias_N=bias_N, product=product)
    rows = rows or quantise_rows(x_TK)
    y_TN = _product(rows, codes_NK, scales_N, dtype=x_TK.dtype, fast=FAST_SUM_FORWARD, exact=exact)
    return y_TN if bias_N is None else y_TN.add_(bias_N)


@torch.no_grad()
def fp8_grad_input(
    dy_TN: Tensor,
    *,
    codes_NK: Tensor,
    scales_N: Tensor,
    codes_KN: Tensor | None = None,
    ones_K: Tensor | None = None,
    rows: Fp8Rows | None = None,
    exact: bool = False,
) -> Tensor:
    """Return ``dy W`` [T, K] in dy's dtype from the codes of the forward product; outside autograd.

    The scales of W are multiplied into dy before it is rounded by rows: they stand on the axis that is summed over.

    Args:
        codes_KN: The codes transposed, where they are kept; otherwise they are transposed now, to the same bits.
        ones_K: float32 ones, where they are kept: the GPU's product reads scales, and transposed codes have none.
        rows: ``dy`` as :func:`quantise_rows` gives it with the factors ``scales_N``, where that was computed already.
        exact: As of :func:`fp8_forward`.
    """
    if not has_product(dy_TN, codes_NK):
        product = _exact_float_product if exact else row_stable_product
        return reference.fp8_grad_input(dy_TN, codes_NK=codes_NK, scales_N=scales_N, product=product)
    rows = rows or quantise_rows(dy_TN, factors_K=scales_N)
    # Hopper multiplies e4m3 only where the summed axis is the consecutive one, in both operands
    turned_KN = transposed(codes_NK) if codes_KN is None else codes_KN
    if ones_K is None or ones_K.device != dy_TN.device:
        ones_K = torch.ones(turned_KN.shape[0], dtype=torch.float32, device=dy_TN.device)
    return _product(rows, turned_KN, ones_K, dtype=dy_TN.dtype, fast=FAST_SUM_BACKWARD, exact=exact)


def has_product(x: Tensor, codes_NK: Tensor) -> bool:
    """Return whether rows such as ``x`` are multiplied as codes; elsewhere the definition is computed."""
    aligned = all(width > 0 and width % ALIGNMENT == 0 for width in codes_NK.shape)
    return x.device.type == "cuda" and x.dtype is torch.bfloat16 and aligned and fp8_problem(x.device) is None


def _exact_float_product(x_TI: Tensor, weight_IO: Tensor) -> Tensor:
    return exact_product(x_TI, weight_IO, forward=False)


def _product(
    rows: Fp8Rows, weight_OI: Tensor, scales: Tensor, *, dtype: torch.dtype, fast: bool, exact: bool
) -> Tensor:
    """Return ``(codes * scales) @ (weight * scales)^T``."""
    num_rows = rows.codes_TK.shape[0]
    if num_rows == 0:
        return torch.empty(0, weight_OI.shape[0], dtype=dtype, device=weight_OI.device)
    if exact:
        kernels = implementation("exact_product", Backend.TRITON)
        found: Tensor = kernels.codes_product(
            rows.codes_TK, weight_OI, scales_M=rows.scales_T, scales_O=scales, dtype=dtype
        )
        return found
    return torch._scaled_mm(
        rows.codes_TK,
        weight_OI.t(),
        scale_a=rows.scales_T[:, None],
        scale_b=scales[None, :],
        out_dtype=dtype,
        use_fast_accum=fast,
    )


assert CODES.itemsize == 1, "codes are bytes, which transposition relies on"
