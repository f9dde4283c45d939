"""The kernel gives the definition's bits, in every dtype."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.kernels.backend import Backend
from cohort.kernels.nf4_weight import Nf4Weight, dequantise, quantise
from tests.kernels.closeness import low_precision


def on(weight: Nf4Weight, device: str) -> Nf4Weight:
    names = ("codes", "scale_codes", "nested_scales", "nested_map", "offset")
    return replace(weight, **{name: getattr(weight, name).to(device) for name in names})


@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (64, 64), (130, 135), (0, 5)])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
def test_the_kernel_dequantises_as_the_reference(triton_device: str, shape: tuple[int, int], low: bool) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    kept = quantise(torch.randn(shape) * torch.logspace(-2, 1, shape[0])[:, None])
    expected, found = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype, device=triton_device)
    dequantise(kept, expected, backend=Backend.REFERENCE)
    dequantise(on(kept, triton_device), found, backend=Backend.TRITON)
    assert torch.equal(found.cpu(), expected)
