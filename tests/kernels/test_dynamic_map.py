"""The dynamic map by its definition, and the nearest of its values."""

from __future__ import annotations

import pytest
import torch

from cohort.kernels.dynamic_map import dynamic_map, nearest_codes


@pytest.mark.parametrize("signed", [True, False])
def test_values_are_ascending_finest_near_zero_and_symmetric_but_for_one(signed: bool) -> None:
    values = dynamic_map(signed=signed)
    assert values.shape == (256,)
    assert (values.diff() > 0).all()
    assert values[-1] == 1.0
    assert 0.0 in values
    if signed:
        below, above = values[values < 0], values[(values > 0) & (values < 1)]
        assert torch.equal(-below.flip(0), above)
    else:
        assert values.min() == 0
    # the smallest is the middle of the first part of [0.1, 1], times 10^-6
    smallest = 0.55e-6 if signed else 0.325e-6
    torch.testing.assert_close(values[values > 0].min().item(), smallest, rtol=1e-6, atol=0)


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_of_the_nearest_value(signed: bool) -> None:
    values = dynamic_map(signed=signed)
    x = torch.rand(5000) * 2 - 1 if signed else torch.rand(5000)
    x = torch.cat((x, x * 1e-3, x * 1e-6, values))
    found = (values[nearest_codes(x, values).long()] - x).abs()
    nearest = (values[None] - x[:, None]).abs().amin(dim=1)
    # A middle is rounded to float32, by up to 2^-24 of itself. Next to it either value may be taken, which is then
    # further away than the nearest by up to twice that; differences are rounded as well.
    assert (found - nearest <= 2**-22 * x.abs()).all()
    assert torch.equal(nearest_codes(values, values), torch.arange(256, dtype=torch.uint8))
