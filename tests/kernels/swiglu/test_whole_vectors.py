"""torch's SiLU is taken where a row has its own bits, whatever threads share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cohort.kernels.swiglu.reference import swiglu_backward, swiglu_forward
from cohort.kernels.swiglu.whole_vectors import GRAIN, row_pieces


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("width", [32, 384, 1376])
def test_a_row_has_the_same_bits_at_any_place_in_any_number_of_threads(threads: int, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    gate_up, dy = (torch.randn(1, size, generator=generator) * 4 for size in (2 * width, width))
    expected = swiglu_forward(gate_up), swiglu_backward(dy, gate_up_TF=gate_up)
    for num_rows in (3, 47, 512):
        for place in (0, num_rows // 2 + 1, num_rows - 1):
            rows, gradients = (torch.randn(num_rows, size, generator=generator) * 4 for size in (2 * width, width))
            rows[place], gradients[place] = gate_up[0], dy[0]
            found = swiglu_forward(rows), swiglu_backward(gradients, gate_up_TF=rows)
            assert all(torch.equal(a[place], b[0]) for a, b in zip(found, expected, strict=True)), (threads, num_rows)


def test_pieces_hold_all_rows_and_threads_share_whole_ones(threads: int) -> None:
    for num_rows in (0, 1, 31, 64, 85, 86, 500, 4096):
        x = torch.empty(num_rows, 384)
        heights = row_pieces(x)
        assert heights is not None
        assert sum(heights) == num_rows
        for height in heights:
            count = min(threads, -(-height * 384 // GRAIN))
            assert count <= 1 or height % count == 0


def test_rows_that_end_within_a_vector_or_of_another_dtype_are_left_to_exp() -> None:
    assert row_pieces(torch.empty(4, 48)) is None
    assert row_pieces(torch.empty(4, GRAIN)) is None
    assert row_pieces(torch.empty(4, 64, dtype=torch.float64)) is None


@pytest.mark.parametrize("width", [32, 33])
def test_both_ways_are_silu_to_the_last_digits(width: int) -> None:
    gate_up, dy = (torch.randn(40, size) * 4 for size in (2 * width, width))
    exact = gate_up.double().requires_grad_()
    gate, up = exact.chunk(2, dim=1)
    y = torch.nn.functional.silu(gate) * up
    (gradient,) = torch.autograd.grad(y, exact, dy.double())
    # a handful of roundings of 2 ** -24 each
    torch.testing.assert_close(swiglu_forward(gate_up).double(), y.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(swiglu_backward(dy, gate_up_TF=gate_up).double(), gradient, rtol=1e-5, atol=1e-5)
