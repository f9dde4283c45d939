"""A term that the next kernel adds as it reads gives the bits of one that was added in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.deferred_lora_term import Apart, joined, with_term
from cohort.kernels.gated_activation import Activation, gated_activation
from cohort.kernels.rms_norm import add_rms_norm
from cohort.kernels.rope import split_and_rotate
from cohort.kernels.swiglu import swiglu
from tests.kernels.closeness import low_precision

Reader = Callable[[Tensor, Tensor | None, Backend], tuple[Tensor, ...]]


def norm(x: Tensor, term: Tensor | None, backend: Backend) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(4)
    residual, weight = (torch.randn(n, generator=generator).to(x) for n in (x.shape, x.shape[1:]))
    return add_rms_norm(x, residual_TD=residual, weight_D=weight, eps=1e-5, term_TD=term, backend=backend)


def rotation(x: Tensor, term: Tensor | None, backend: Backend) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    cos, sin = torch.randn(2, len(x), 6, generator=generator).to(x.device)
    return split_and_rotate(x, heads=(3, 2), cos_TE=cos, sin_TE=sin, term_TN=term, backend=backend)


def gate(x: Tensor, term: Tensor | None, backend: Backend) -> tuple[Tensor, ...]:
    return (swiglu(x, term_TF=term, backend=backend),)


@pytest.mark.parametrize("reader", [norm, rotation, gate])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
@pytest.mark.parametrize("num_rows", [0, 1, 19])
@torch.no_grad()
def test_reads_the_sum(triton_device: str, reader: Reader, low: bool, num_rows: int) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    generator = torch.Generator().manual_seed(num_rows)
    x = torch.randn(num_rows, 42, generator=generator).to(triton_device, dtype)
    term = torch.randn(num_rows, 42, generator=generator).to(triton_device)
    for backend in Backend:
        found = reader(x, term, backend)
        expected = reader(with_term(x, term), None, backend)
        assert [y.shape for y in found] == [y.shape for y in expected]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@torch.no_grad()
def test_what_has_no_kernel_for_it_reads_the_sum_as_well() -> None:
    x, term = torch.randn(2, 5, 12)
    both = Apart(x, term)
    for activation in Activation:
        expected = gated_activation(with_term(x, term), activation=activation)
        assert torch.equal(gated_activation(both, activation=activation), expected)
    assert torch.equal(joined(both), x + term)
    assert joined(x) is x


@pytest.mark.parametrize("reader", [norm, rotation, gate])
@torch.no_grad()
def test_a_term_that_does_not_fit_is_refused(reader: Reader) -> None:
    x, term = torch.randn(2, 4, 42)
    for wrong in (term[:3], term.double(), term.T.contiguous().T):
        with pytest.raises(ShapeError, match="cannot be added"):
            reader(x, wrong, Backend.REFERENCE)
