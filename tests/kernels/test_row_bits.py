"""On the CPU a row's result and gradient have the same bits wherever the row stands and whatever its neighbours are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.kernels.rms_norm import add_rms_norm, rms_norm
from cohort.kernels.rope import apply_rope
from cohort.kernels.swiglu import swiglu
from tests.kernels.dense_head import DenseHead

WIDTHS = (24, 64, 172, 576, 2052)
STREAMS = (32, 48, 80, 272)

# One row's operands in, its result and gradients out, once the operands stand at one place of a stream of random rows.
RowOp = Callable[[list[Tensor]], list[Tensor]]


def _norm(operands: list[Tensor]) -> list[Tensor]:
    x, dy = operands
    weight = torch.linspace(0.5, 1.5, x.shape[-1])
    x.requires_grad_()
    y = rms_norm(x, weight_D=weight, eps=1e-5)
    return [y, *torch.autograd.grad(y, x, dy)]


def _add_norm(operands: list[Tensor]) -> list[Tensor]:
    x, dy, residual, dresidual = operands
    weight = torch.linspace(0.5, 1.5, x.shape[-1])
    y, new_residual = add_rms_norm(x.requires_grad_(), residual_TD=residual.requires_grad_(), weight_D=weight, eps=1e-5)
    return [y, new_residual, *torch.autograd.grad((y, new_residual), (x, residual), (dy, dresidual))]


def _rope(operands: list[Tensor]) -> list[Tensor]:
    q, k, dq, dk, cos, sin = operands
    heads = [x.view(x.shape[0], -1, 4).transpose(1, 2).contiguous() for x in (q, k, dq, dk)]  # [T, 4, width / 4]
    width = heads[0].shape[-1] // 2 * 2
    q, k, dq, dk = (x[..., :width].contiguous() for x in heads)
    rotated = apply_rope(q.requires_grad_(), k.requires_grad_(), cos_TE=cos[:, :width], sin_TE=sin[:, :width])
    return [*rotated, *torch.autograd.grad(rotated, (q, k), (dq, dk))]


def _swiglu(operands: list[Tensor]) -> list[Tensor]:
    gate_up, dy = operands
    y = swiglu(gate_up.requires_grad_())
    return [y, *torch.autograd.grad(y, gate_up, dy[:, : y.shape[1]])]


OPS = {"rms_norm": (_norm, 2), "add_rms_norm": (_add_norm, 4), "rope": (_rope, 6), "swiglu": (_swiglu, 2)}


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_has_the_same_bits_everywhere(name: str, width: int) -> None:
    op, num_operands = OPS[name]
    generator = torch.Generator().manual_seed(width)
    row = [torch.randn(width, generator=generator) * 2 for _ in range(num_operands)]
    first: list[Tensor] | None = None
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for length in STREAMS:
            for place in (0, 7, length - 1):
                operands = [torch.randn(length, width, generator=generator) * 3 for _ in row]
                operands[0][(place + 1) % length] = torch.nan  # a neighbour's failure stays its own
                for operand, mine in zip(operands, row, strict=True):
                    operand[place] = mine
                results = [result[place].detach().clone() for result in op(operands)]
                first = first or results
                assert all(result.isfinite().all() for result in results)
                assert all(torch.equal(result, expected) for result, expected in zip(results, first, strict=True)), (
                    threads,
                    length,
                    place,
                )


@pytest.mark.parametrize(("width", "vocabulary"), [(24, 301), (64, 1000), (576, 1027)])
def test_a_token_loss_and_its_gradient_have_the_same_bits_everywhere(width: int, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    head = DenseHead(torch.randn(vocabulary, width, generator=generator) / width**0.5)
    row, target, weight = torch.randn(width, generator=generator), 17, 0.37
    first: tuple[Tensor, Tensor] | None = None
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for length in (32, 272):
            for place in (0, 7, length - 1):
                for share, chunk_rows in ((0.0, None), (0.3, 32), (1.0, 48), (1.0, None)):
                    hidden = torch.randn(length, width, generator=generator) * 2
                    targets = torch.randint(0, vocabulary, (length,), generator=generator)
                    targets[torch.rand(length, generator=generator) > share] = -100
                    hidden[(place + 1) % length] = torch.inf
                    hidden[place], targets[place] = row, target
                    hidden.requires_grad_()
                    losses = linear_cross_entropy(hidden, head=head, targets_T=targets, chunk_rows=chunk_rows)
                    weights = torch.rand(length, generator=generator)
                    weights[place] = weight
                    (gradient,) = torch.autograd.grad(losses, hidden, weights)
                    result = (losses[place].detach(), gradient[place])
                    first = first or result
                    assert result[1].isfinite().all()
                    assert torch.equal(result[0], first[0]), (threads, length, place, share)
                    assert torch.equal(result[1], first[1]), (threads, length, place, share)
                    assert not gradient[targets == -100].any()
