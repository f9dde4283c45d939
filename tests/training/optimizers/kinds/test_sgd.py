"""SGD takes the gradient, with the decayed weights as a part of it."""

from __future__ import annotations

import pytest

from cohort.training.optimizers.kinds.sgd import OPTIMIZER
from tests.training.optimizers.slots import RATE, bank_of, trial_in


def test_a_step_is_the_rate_times_gradient_and_decayed_weight() -> None:
    bank = bank_of(OPTIMIZER)
    own = trial_in(bank, weight=2.0, gradient=0.5, decay=0.25)
    OPTIMIZER.update(bank, [own])
    found = bank.read(own.slot)
    assert found.weights.unique().tolist() == pytest.approx([2.0 - RATE * (0.5 + 0.25 * 2.0)])
    assert found.moments == {}
