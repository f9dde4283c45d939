"""int8 weights: codes of the nearest step, zero rows, siblings as alone."""

from __future__ import annotations

import torch

from cohort.models.weight_formats.kinds.int8 import FORMAT


def test_products_are_those_of_rounded_weights() -> None:
    assert FORMAT.quantisation is not None
    weights = [torch.randn(n, 24) * torch.logspace(-3, 3, n)[:, None] for n in (6, 1, 5)]
    weights[0][2] = 0
    bias, x, dy = torch.randn(12), torch.randn(32, 24), torch.randn(32, 12)
    fused = FORMAT.quantisation.assemble([FORMAT.quantisation.quantise(w) for w in weights], bias, torch.float32)
    weight = torch.cat(weights)
    steps = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = torch.where(steps > 0, (weight / steps).round() * steps, 0.0)
    torch.testing.assert_close(fused.forward(x), x @ rounded.t() + bias, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fused.grad_input(dy), dy @ rounded, rtol=1e-4, atol=1e-3)
    assert fused.num_bytes == FORMAT.weight_bytes(12, 24, torch.float32) + bias.nbytes == 12 * 24 + 12 * 4 + 12 * 4


def test_sixteen_bits_round_the_weight_once() -> None:
    weight, x = torch.randn(5, 24, dtype=torch.bfloat16), torch.eye(24, dtype=torch.bfloat16)[:16]
    found = FORMAT.freeze(weight, None).forward(x)
    assert found.dtype == torch.bfloat16
    # a step of 1/127 of the row's largest, rounded to 8 bits of mantissa
    assert ((found.t() - weight[:, :16]).abs() <= weight.abs().amax(dim=1, keepdim=True) * (0.5 / 127 + 2**-8)).all()
