"""Each trial of a bank is stepped by its own optimizer, as it would be alone."""

from __future__ import annotations

import torch

from cohort.training.optimizers import OPTIMIZERS
from cohort.training.optimizers.by_trial import ByTrial
from tests.training.optimizers.slots import bank_of, trial_in

MIXED = ByTrial({name: OPTIMIZERS[name] for name in ("sgd", "lion")})


def test_trials_of_two_optimizers_step_as_each_does_alone_and_norms_keep_their_places() -> None:
    bank = bank_of(MIXED, num_slots=3)
    own = [
        trial_in(bank, weight=1.0, gradient=gradient, optim=optim)
        for optim, gradient in (("sgd", 0.5), ("lion", 0.25), ("sgd", -2.0))
    ]
    norms = MIXED.update(bank, own)
    for place, resident in enumerate(own):
        alone = bank_of(MIXED)
        one = trial_in(alone, weight=1.0, gradient=(0.5, 0.25, -2.0)[place], optim=resident.spec.optim)
        norm = MIXED.update(alone, [one])
        assert torch.equal(norms[place], norm[0])
        assert torch.equal(bank.read(resident.slot).weights, alone.read(one.slot).weights)


def test_a_bank_has_the_moments_of_all() -> None:
    assert {moment.name for moment in MIXED.moments} == {"exp_avg"}
    assert len(ByTrial(OPTIMIZERS).moments) == len(
        {moment.name for own in OPTIMIZERS.values() for moment in own.moments}
    )
