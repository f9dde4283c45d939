"""A seeded backward pass gives the bits of torch's own, and imports nothing for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cohort.training.backward_start import seeded


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5)])
def test_it_gives_the_bits_of_torchs_own_backward_pass(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    values, gradients = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    own, ours = values.clone().requires_grad_(), values.clone().requires_grad_()
    own.exp().backward(gradients)
    seeded(ours.exp(), gradients).backward()
    assert own.grad is not None
    assert ours.grad is not None
    assert torch.equal(own.grad, ours.grad)


def test_infinite_and_missing_gradients_arrive_as_they_are() -> None:
    leaf = torch.ones(3, requires_grad=True)
    given = torch.tensor([float("inf"), float("nan"), -0.0])
    (found,) = torch.autograd.grad(seeded(leaf * 1.0, given), leaf)
    assert torch.equal(found.view(torch.int32), given.view(torch.int32))


def test_it_imports_no_symbolic_shapes() -> None:
    script = (
        "import sys, torch\n"
        "from cohort.training.backward_start import seeded\n"
        "leaf = torch.ones(3, requires_grad=True)\n"
        "seeded(leaf * 2, torch.ones(3)).backward()\n"
        "print('torch.fx.experimental.symbolic_shapes' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
