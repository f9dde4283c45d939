"""The dynamic map: 256 values in [-1, 1] or [0, 1] whose spacing shrinks towards zero, and the nearest of them.

Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (ICLR 2022), section 2.2. An 8-bit code has a
sign (where there is one), a decimal exponent from 0 to -6 written in unary, and a linear fraction in the bits that are
left: the larger the exponent, the more of them. Values are the middles of equal parts of [0.1, 1] times the power of
ten, and 0 and 1.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["dynamic_map", "nearest_codes"]

_EXPONENTS = 7


@functools.cache
def _values(*, signed: bool) -> tuple[float, ...]:
    values = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        # an unsigned code has one more bit for its fraction
        num_parts = 2 ** (exponent if signed else exponent + 1)
        edges = torch.linspace(0.1, 1.0, num_parts + 1, dtype=torch.float32)
        # products in float32, by a scale that is rounded to it: as files that others write hold them
        middles = 10.0 ** (exponent - _EXPONENTS + 1) * ((edges[:-1] + edges[1:]) / 2.0)
        values += middles.tolist()
        values += (-middles).tolist() if signed else []
    return tuple(sorted(values))


def dynamic_map(*, signed: bool, device: torch.device | str = "cpu") -> Tensor:
    """Return the 256 values in ascending order, float32."""
    return torch.tensor(_values(signed=signed), dtype=torch.float32, device=device)


def nearest_codes(x: Tensor, values: Tensor) -> Tensor:
    """Return the index of the nearest of ``values`` (ascending) for each entry, uint8; of two as near, the lower one.

    NaN has the last index: its block's scale is NaN as well, so it stays what it is.
    """
    middles = (values[:-1] + values[1:]) / 2.0
    return torch.bucketize(x, middles).to(torch.uint8)
