"""Lion moves every weight by the whole rate, whatever the size of its gradient."""

from __future__ import annotations

import pytest

from cohort.training.optimizers.kinds.lion import BETA2, OPTIMIZER
from tests.training.optimizers.slots import RATE, bank_of, trial_in


@pytest.mark.parametrize("gradient", [1e-6, 30.0, -4.0])
def test_a_step_is_a_sign_and_the_decayed_weight(gradient: float) -> None:
    bank = bank_of(OPTIMIZER)
    own = trial_in(bank, weight=2.0, gradient=gradient, decay=0.25)
    OPTIMIZER.update(bank, [own])
    found, sign = bank.read(own.slot), 1.0 if gradient > 0 else -1.0
    assert found.weights.unique().tolist() == pytest.approx([2.0 - RATE * (sign + 0.25 * 2.0)])
    # the mean remembers with another beta than the step reads it with
    assert found.moments["exp_avg"].unique().tolist() == pytest.approx([(1 - BETA2) * gradient])


def test_the_sign_is_that_of_the_mean_and_the_gradient_together() -> None:
    bank = bank_of(OPTIMIZER)
    own = trial_in(bank, weight=0.0, gradient=100.0)
    OPTIMIZER.update(bank, [own])
    bank.grads_RD[bank.rank_rows(own.slot)] = -1.0
    OPTIMIZER.update(bank, [own])
    # 0.9 of a mean of 1 outweighs 0.1 of a gradient of -1
    assert bank.read(own.slot).weights.unique().tolist() == pytest.approx([-2 * RATE])
