"""nf4 weights: siblings keep blocks of their own, bytes are counted, and a bitsandbytes checkpoint is read as it is."""

from __future__ import annotations

import torch

from cohort.kernels.nf4_weight import dequantise, quantise
from cohort.models.weight_formats.kinds.nf4 import FORMAT, Nf4Linear


def test_siblings_have_the_products_that_each_has_alone() -> None:
    assert FORMAT.quantisation is not None
    weights, bias = [torch.randn(n, 27) for n in (6, 3, 5)], torch.randn(14)
    x, dy = torch.randn(32, 27), torch.randn(32, 14)
    fused = FORMAT.quantisation.assemble([FORMAT.quantisation.quantise(w) for w in weights], bias, torch.float32)
    rounded = torch.empty(14, 27)
    row = 0
    for weight in weights:
        dequantise(quantise(weight), rounded[row : row + len(weight)])
        row += len(weight)
    assert torch.equal(fused.forward(x), torch.nn.functional.linear(x, rounded, bias))
    assert torch.equal(fused.grad_input(dy), torch.nn.functional.linear(dy, rounded.t()))
    assert fused.num_bytes == sum(FORMAT.weight_bytes(n, 27, torch.float32) for n in (6, 3, 5)) + bias.nbytes


def test_an_eight_billion_base_takes_less_than_six_gib() -> None:
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    linears = 32 * sum(FORMAT.weight_bytes(*shape, torch.bfloat16) for shape in shapes)
    tables = 2 * 128256 * 4096 * 2
    widest = 2 * 28672 * 4096
    assert linears + tables + widest < 6 << 30


def test_products_add_onto_outputs_and_weights_can_stand_elsewhere() -> None:
    frozen = FORMAT.freeze(torch.randn(6, 20), None)
    assert isinstance(frozen, Nf4Linear)
    x, y = torch.randn(32, 20), torch.ones(32, 6)
    frozen.add_forward(x, y)
    torch.testing.assert_close(y, 1 + frozen.forward(x))
    dx = torch.ones(32, 20)
    frozen.add_grad_input(y, dx)
    torch.testing.assert_close(dx, 1 + frozen.grad_input(y))
    before = frozen.forward(x)
    frozen.place_weights([tensor.clone() for tensor in frozen.streamed_weights])
    assert torch.equal(frozen.forward(x), before)
    assert frozen.can_accumulate
