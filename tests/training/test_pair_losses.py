"""Losses of pairs: their values, their gradients' signs, and what they do far from zero."""

from __future__ import annotations

import math

import pytest
import torch

from cohort.training.pair_losses import pair_loss, reward_metrics


def loss(margin: float, *, kind: str, beta: float = 0.5, smoothing: float = 0.0) -> float:
    one = [torch.tensor([value], dtype=torch.float64) for value in (margin, beta, smoothing)]
    return float(pair_loss(one[0], kind=kind, beta_G=one[1], smoothing_G=one[2]))


@pytest.mark.parametrize("margin", [-3.0, 0.0, 2.5])
def test_the_formulas(margin: float) -> None:
    right, wrong = (math.log1p(math.exp(sign * 0.5 * margin)) for sign in (-1, 1))
    assert loss(margin, kind="sigmoid") == pytest.approx(right)
    assert loss(margin, kind="sigmoid", smoothing=0.2) == pytest.approx(0.8 * right + 0.2 * wrong)
    assert loss(margin, kind="robust", smoothing=0.2) == pytest.approx((0.8 * right - 0.2 * wrong) / 0.6)
    assert loss(margin, kind="hinge") == max(0.0, 1 - 0.5 * margin)
    assert loss(margin, kind="ipo") == pytest.approx((margin - 1.0) ** 2)


def test_margins_far_from_zero_stay_finite() -> None:
    for kind in ("sigmoid", "robust", "hinge"):
        margins = torch.tensor([-1e4, 1e4], requires_grad=True)
        pair_loss(margins, kind=kind, beta_G=torch.tensor([0.1, 0.1]), smoothing_G=torch.zeros(2)).sum().backward()
        assert margins.grad is not None
        assert torch.isfinite(margins.grad).all()


def test_a_form_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="'exo_pair'; there are sigmoid, hinge, ipo and robust"):
        loss(0.0, kind="exo_pair")


def test_equal_rewards_are_no_preference() -> None:
    found = reward_metrics(torch.tensor([[1.0, 0.5], [0.2, 0.2], [0.0, 3.0]]))
    assert found["reward_accuracy"].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(found["reward_margin"], torch.tensor([0.5, 0.0, -3.0]))
