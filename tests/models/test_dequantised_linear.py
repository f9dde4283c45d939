"""What every dequantised format shares: one whole weight for each product, and a bias only added by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.models.dequantised_linear import DequantisedLinear


class Halved(DequantisedLinear):
    """A weight that is kept as twice itself."""

    def __init__(self, doubled_NK: Tensor, bias_N: Tensor | None = None) -> None:
        super().__init__((doubled_NK.shape[0], doubled_NK.shape[1]), bias_N, dtype=doubled_NK.dtype)
        self.doubled_NK = doubled_NK

    def write_weight(self, out_NK: Tensor) -> None:
        torch.mul(self.doubled_NK, 0.5, out=out_NK)

    @property
    def streamed_weights(self) -> tuple[Tensor, ...]:
        return (self.doubled_NK,)

    def place_weights(self, weights: Sequence[Tensor]) -> None:
        (self.doubled_NK,) = weights


def test_products_and_their_sums() -> None:
    weight, bias = torch.randn(5, 600), torch.randn(5)
    x, dy = torch.randn(32, 600), torch.randn(32, 5)
    frozen, plain = Halved(2 * weight, bias), Halved(2 * weight)
    torch.testing.assert_close(frozen.forward(x), x @ weight.T + bias, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(frozen.grad_input(dy), dy @ weight)
    y, dx = torch.ones_like(dy), torch.ones_like(x)
    plain.add_forward(x, y)
    plain.add_grad_input(dy, dx)
    torch.testing.assert_close(y, 1 + x @ weight.T, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(dx, 1 + dy @ weight)
    assert (frozen.can_accumulate, plain.can_accumulate) == (False, True)
    assert frozen.num_bytes == 5 * 600 * 4 + 5 * 4
    assert (frozen.in_features, frozen.out_features) == (600, 5)
