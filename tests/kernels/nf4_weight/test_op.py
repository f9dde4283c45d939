"""What the ops refuse, and the bytes of a weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.core.errors import ShapeError
from cohort.kernels.nf4_weight import dequantise, quantise


def test_tensors_that_do_not_fit_the_shape_are_refused() -> None:
    kept = quantise(torch.randn(8, 64))
    with pytest.raises(ShapeError, match="codes of a weight"):
        replace(kept, shape=(9, 64))
    with pytest.raises(ShapeError, match="scale_codes of a weight"):
        replace(kept, scale_codes=kept.scale_codes[:-1])
    for out in (torch.empty(64, 8), torch.empty(64, 8).t()):
        with pytest.raises(ShapeError, match="rows one behind the other"):
            dequantise(kept, out)


def test_bytes() -> None:
    # half a byte a weight, one a block of 64, four for 256 blocks, the map and the mean
    assert quantise(torch.randn(256, 256)).num_bytes == 256 * 128 + 1024 + 4 * 4 + 1024 + 4
