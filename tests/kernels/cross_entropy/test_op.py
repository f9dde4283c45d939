from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, implementation
from cohort.kernels.cross_entropy import linear_cross_entropy, price_rows
from tests.kernels.closeness import assert_near, low_precision, relative_error
from tests.kernels.dense_head import DenseHead


def _problem(
    num_rows: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Tensor, DenseHead, Tensor]:
    hidden = torch.randn(num_rows, width, dtype=dtype, device=device)
    head = DenseHead(torch.randn(vocabulary, width, dtype=dtype, device=device) / width**0.5)
    targets = torch.randint(0, vocabulary, (num_rows,), device=device)
    targets[::3] = -100
    return hidden.requires_grad_(), head, targets


@pytest.mark.parametrize("num_rows", [0, 1, 31, 32, 100])
@pytest.mark.parametrize("chunk_rows", [None, 32, 48])
def test_is_cross_entropy_of_the_logits(num_rows: int, chunk_rows: int | None) -> None:
    hidden, head, targets = _problem(num_rows, 24, 301)
    weights = torch.rand(num_rows, dtype=torch.float64)  # found after the losses, as DPO's are
    losses = linear_cross_entropy(hidden, head=head, targets_T=targets, chunk_rows=chunk_rows)
    expected = F.cross_entropy(hidden @ head.weight_VD.t(), targets, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(x, hidden, weights)[0] for x in (losses, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", Backend)
def test_capped_logits(triton_device: str, backend: Backend) -> None:
    hidden, head, targets = _problem(70, 24, 301, dtype=torch.float32, device=triton_device)
    losses = linear_cross_entropy(hidden, head=head, targets_T=targets, logit_cap=0.7, chunk_rows=32, backend=backend)
    exact = hidden.detach().double().requires_grad_()
    capped = 0.7 * torch.tanh(exact @ head.weight_VD.double().t() / 0.7)
    expected = F.cross_entropy(capped, targets, reduction="none")
    assert_near(losses, expected)
    assert_near(*(torch.autograd.grad(x.sum(), y)[0] for x, y in ((losses, hidden), (expected, exact))))


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("logit_cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_has_a_scale_of_its_own_in_the_precision_of_the_losses(
    triton_device: str, backend: Backend, logit_cap: float | None, dtype: torch.dtype
) -> None:
    if dtype == torch.bfloat16:
        dtype = low_precision(triton_device)
    hidden, head, targets = _problem(70, 24, 301, dtype=dtype, device=triton_device)
    hidden, targets = hidden.detach(), targets.clamp(min=0)
    scales = torch.tensor([1.0, 0.5, 1 / 0.7], device=triton_device).repeat(24)[:70]
    rows = torch.arange(70, device=triton_device)
    losses, gradients = price_rows(
        hidden,
        head=head,
        targets_M=targets,
        rows_M=rows,
        scales_M=scales,
        logit_cap=logit_cap,
        chunk_rows=32,
        backend=backend,
    )
    # the head rounds its logits to the dtype of the hidden states, and nothing behind it does
    logits = head.forward(hidden)
    if logit_cap is not None:
        logits = logit_cap * torch.tanh(logits / logit_cap)
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact * scales.double()[:, None], targets, reduction="none")
    assert relative_error(losses, expected) < 2e-6
    (of_logits,) = torch.autograd.grad(expected.sum(), exact)
    if logit_cap is not None:
        of_logits = of_logits * (1 - (exact.detach() / logit_cap).square())
    assert_near(gradients, of_logits @ head.weight_VD.double(), roundings=4)


def test_float32_losses_for_lower_precision() -> None:
    hidden, head, targets = _problem(40, 16, 50, dtype=torch.bfloat16)
    losses = linear_cross_entropy(hidden, head=head, targets_T=targets)
    assert losses.dtype == torch.float32
    assert torch.autograd.grad(losses.sum(), hidden)[0].dtype == torch.bfloat16


def test_only_trained_rows_cost_logits_and_never_more_than_a_chunk() -> None:
    hidden, head, targets = _problem(300, 8, 40)
    targets[70:] = -100
    trained = int((targets != -100).sum())
    linear_cross_entropy(hidden, head=head, targets_T=targets, chunk_rows=32).sum().backward()
    assert sum(head.row_counts) < trained + 32
    assert all(count >= 32 and count % 16 == 0 for count in head.row_counts)
    assert max(head.row_counts) == 32
    head.row_counts.clear()
    linear_cross_entropy(hidden, head=head, targets_T=torch.full_like(targets, -100))
    assert head.row_counts == []


def test_default_chunks_bound_the_workspace() -> None:
    hidden, head, targets = _problem(600, 4, 60_000, dtype=torch.float32)
    linear_cross_entropy(hidden, head=head, targets_T=targets)
    assert max(head.row_counts) * 60_000 * 4 <= 1 << 26
    assert len(head.row_counts) > 1


def test_without_gradient_no_gradient_is_computed() -> None:
    hidden, head, targets = _problem(40, 8, 40)
    calls = []
    head.grad_input = lambda dy: calls.append(dy)  # type: ignore[method-assign, assignment, return-value]
    with torch.no_grad():
        losses = linear_cross_entropy(hidden, head=head, targets_T=targets)
    assert not calls
    assert not losses.requires_grad
    assert torch.equal(losses, linear_cross_entropy(hidden.detach(), head=head, targets_T=targets))


def test_given_rows_may_repeat_an_untrained_one() -> None:
    hidden, head, targets = _problem(50, 8, 40)
    rows = (targets != -100).nonzero().squeeze(1)
    padded = torch.cat((rows, torch.tensor([0] * (64 - rows.shape[0]))))  # row 0 is untrained
    expected = linear_cross_entropy(hidden, head=head, targets_T=targets)
    found = linear_cross_entropy(hidden, head=head, targets_T=targets, trained_rows_M=padded)
    assert torch.equal(found, expected)
    gradients = (torch.autograd.grad(x.square().sum(), hidden)[0] for x in (found, expected))
    assert torch.equal(*gradients)


def _assert_failures_stay_in_their_rows(device: str, backend: Backend) -> None:
    hidden, head, targets = _problem(40, 8, 40, dtype=torch.float32, device=device)
    targets[1], targets[4] = 40, -1  # outside the vocabulary
    with torch.no_grad():
        hidden[7] = torch.nan
        hidden[10] = torch.inf
    losses = linear_cross_entropy(hidden, head=head, targets_T=targets, backend=backend)
    (gradient,) = torch.autograd.grad(losses, hidden, torch.ones_like(losses))
    assert losses.isnan().nonzero().squeeze(1).tolist() == [1, 4, 7, 10]
    healthy = [row for row in range(40) if row not in (1, 4, 7, 10)]
    assert gradient[healthy].isfinite().all()
    # a label outside the vocabulary pulls nowhere: what is left is the softmax's own gradient
    softmax = torch.softmax(hidden.detach()[1] @ head.weight_VD.t(), dim=-1)
    torch.testing.assert_close(gradient[1], softmax @ head.weight_VD, rtol=1e-4, atol=1e-5)
    alone = linear_cross_entropy(hidden[11:12], head=head, targets_T=targets[11:12], backend=backend)
    assert_near(losses[11:12], alone)


def test_failures_stay_in_their_rows() -> None:
    _assert_failures_stay_in_their_rows("cpu", Backend.REFERENCE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, about the NaN that is the point
def test_triton_failures_stay_in_their_rows(triton_device: str) -> None:
    _assert_failures_stay_in_their_rows(triton_device, Backend.TRITON)


@pytest.mark.parametrize("vocabulary", [2, 40, 2049, 8192, 20_011])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
def test_triton_rows(triton_device: str, vocabulary: int, low: bool) -> None:
    # where both of two logits are near, a loss is a small difference of them, whose rounding is large beside it
    torch.manual_seed(vocabulary)
    dtype = low_precision(triton_device) if low else torch.float32
    buffer = torch.full((5, vocabulary + 8), torch.nan, dtype=dtype, device=triton_device)
    buffer[:, :vocabulary] = torch.randn(5, vocabulary, device=triton_device) * 4
    logits = buffer[:, :vocabulary]
    targets = torch.tensor([0, vocabulary - 1, -100, vocabulary // 2, 1], device=triton_device)
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none")
    (gradient,) = torch.autograd.grad(expected.sum(), exact)
    kernels = implementation("cross_entropy", Backend.TRITON)
    before = logits.clone()
    losses = kernels.cross_entropy_rows(logits, targets_C=targets, with_gradient=False)
    assert torch.equal(logits, before)
    assert relative_error(losses, expected) < 2e-6
    again = kernels.cross_entropy_rows(logits, targets_C=targets, with_gradient=True)
    assert torch.equal(losses, again)
    assert_near(logits, gradient, roundings=3)  # exp of a rounded difference near 10
    assert buffer[:, vocabulary:].isnan().all(), "wrote past the vocabulary"
    assert not logits[2].any()


def test_triton_minus_infinity_logits_are_impossible_entries(triton_device: str) -> None:
    logits = torch.randn(2, 5000, device=triton_device)
    logits[:, 100:] = -torch.inf
    logits[1, :100] = -torch.inf
    logits[1, 4999] = 3.0
    targets = torch.tensor([7, 4999], device=triton_device)
    expected = F.cross_entropy(logits.double(), targets, reduction="none")
    losses = implementation("cross_entropy", Backend.TRITON).cross_entropy_rows(
        logits, targets_C=targets, with_gradient=True
    )
    torch.testing.assert_close(losses.double(), expected, rtol=2e-6, atol=2e-6)
    assert logits.isfinite().all()


@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
def test_triton_op_forward_and_gradient(triton_device: str, low: bool) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    hidden, head, targets = _problem(70, 32, 1003, dtype=dtype, device=triton_device)
    weights = torch.rand(70, device=triton_device)
    losses = linear_cross_entropy(hidden, head=head, targets_T=targets, chunk_rows=32, backend=Backend.TRITON)
    (gradient,) = torch.autograd.grad(losses, hidden, weights)
    exact = hidden.detach().double().requires_grad_()
    expected = F.cross_entropy(exact @ head.weight_VD.double().t(), targets, reduction="none")
    assert relative_error(losses, expected) < (
        1e-3 if low else 2e-6
    )  # logits near 3 are rounded to 16 bits, then summed
    # roundings of logits, dlogits, their product and the weighted row
    assert_near(gradient, torch.autograd.grad(expected, exact, weights.double())[0], roundings=4)


def test_wrong_shapes_are_refused() -> None:
    hidden, head, targets = _problem(10, 8, 40)
    with pytest.raises(ShapeError, match="do not fit"):
        linear_cross_entropy(hidden, head=head, targets_T=targets[:9])
    with pytest.raises(ShapeError, match="do not fit"):
        linear_cross_entropy(hidden[:, :7], head=head, targets_T=targets)
    with pytest.raises(ShapeError, match="chunk_rows is 8"):
        linear_cross_entropy(hidden, head=head, targets_T=targets, chunk_rows=8)
