"""How near a kernel must be to its reference: by relative error of the whole tensor, reasoned once for every kernel."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["assert_near", "low_precision", "relative_error"]

# Rounding of one result (unit roundoff: 2^-9 for bf16, 2^-24 for float32) plus a few roundings inside, in float32.
# Errors of elements are independent, so the norm-wise error stays below the element-wise bound.
LARGEST_ERROR = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 2e-6}


def low_precision(device: str) -> torch.dtype:
    """Return the 16-bit dtype to test on ``device``: Triton's interpreter truncates to bf16 where GPUs round."""
    return torch.float16 if device == "cpu" else torch.bfloat16


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return ``|found - expected| / |expected|`` in float64; NaN never passes a comparison."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def assert_near(found: Tensor, expected: Tensor, *, roundings: float = 1.0) -> None:
    """Assert that shapes agree and the error stays below ``roundings`` roundings of ``found``'s dtype."""
    assert found.shape == expected.shape
    if expected.numel() == 0:
        return
    error = relative_error(found, expected)
    assert error <= roundings * LARGEST_ERROR[found.dtype], f"relative error {error:.2e}"
