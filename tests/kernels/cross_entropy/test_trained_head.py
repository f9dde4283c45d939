"""The gradient of a trained head against autograd in float64, and its bits under other cuts of its rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.cross_entropy import TrainedHead, add_head_gradient


def reference(
    hidden_TD: Tensor, table_VD: Tensor, targets_T: Tensor, weights_T: Tensor, *, logit_cap: float | None
) -> tuple[Tensor, Tensor]:
    """Losses [T] and the table's gradient [V, D]: the definition, in the dtype of the inputs."""
    table_VD = table_VD.clone().requires_grad_()
    logits_TV = hidden_TD @ table_VD.T
    if logit_cap is not None:
        logits_TV = logit_cap * torch.tanh(logits_TV / logit_cap)
    losses_T = F.cross_entropy(logits_TV, targets_T, ignore_index=-100, reduction="none")
    (losses_T * weights_T).sum().backward()
    assert table_VD.grad is not None
    return losses_T.detach(), table_VD.grad


def inputs(num_rows: int, *, vocabulary: int = 37, width: int = 20, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    hidden_TD = torch.randn(num_rows, width, generator=generator, dtype=torch.float64)
    table_VD = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    targets_T = torch.randint(0, vocabulary, (num_rows,), generator=generator)
    targets_T[torch.rand(num_rows, generator=generator) < 0.4] = -100
    return hidden_TD, table_VD, targets_T, torch.rand(num_rows, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("logit_cap", [None, 3.0])
@pytest.mark.parametrize("num_rows", [1, 7, 80])
def test_the_gradient_is_that_of_autograd(num_rows: int, logit_cap: float | None) -> None:
    hidden_TD, table_VD, targets_T, weights_T = inputs(num_rows)
    _, expected = reference(hidden_TD, table_VD, targets_T, weights_T, logit_cap=logit_cap)
    sink_VD = torch.ones_like(table_VD)
    rows_M = (targets_T != -100).nonzero().squeeze(1)
    half = rows_M.shape[0] // 2
    add_head_gradient(
        sink_VD,
        hidden_TD=hidden_TD,
        head=TrainedHead(table_VD),
        targets_T=targets_T,
        weights_T=weights_T,
        # a sample without a trained row is a run as well
        runs=[rows_M[:half], rows_M[:0], rows_M[half:]],
        logit_cap=logit_cap,
    )
    # added to what was there
    torch.testing.assert_close(sink_VD - 1, expected, rtol=1e-12, atol=1e-12)


def test_a_run_has_its_bits_whatever_stands_around_it() -> None:
    hidden_TD, table_VD, targets_T, weights_T = (t.float() if t.is_floating_point() else t for t in inputs(60))
    rows_M = (targets_T != -100).nonzero().squeeze(1)
    together, apart = torch.zeros_like(table_VD), torch.zeros_like(table_VD)
    shared: dict[str, Any] = {"hidden_TD": hidden_TD, "targets_T": targets_T, "weights_T": weights_T}
    shared["head"] = TrainedHead(table_VD)
    add_head_gradient(together, runs=[rows_M[:9], rows_M[9:]], **shared)
    for run in (rows_M[:9], rows_M[9:]):
        add_head_gradient(apart, runs=[run], **shared)
    assert torch.equal(together, apart)
    moved = torch.cat([torch.randn(5, hidden_TD.shape[1]), hidden_TD])
    beside = torch.zeros_like(table_VD)
    add_head_gradient(
        beside,
        hidden_TD=moved,
        head=TrainedHead(table_VD),
        targets_T=torch.cat([torch.full((5,), 3), targets_T]),
        weights_T=torch.cat([torch.ones(5), weights_T]),
        runs=[rows_M[:9] + 5, rows_M[9:] + 5],
    )
    assert torch.equal(beside, together)
