"""One trial in a bank with given weights and gradients, for tests of one optimizer's step."""

from __future__ import annotations

import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.order import SampleOrder
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

__all__ = ["RATE", "bank_of", "trial_in"]

RATE = 0.1
_ROWS = random_rows(2)


def bank_of(optimizer: Optimizer, *, num_slots: int = 2) -> AdapterBank:
    """An empty bank of float64, in which a step is arithmetic."""
    layout = AdapterLayout({"a": (3, 5)})
    return AdapterBank(
        layout, num_slots=num_slots, num_rank_rows=16 * num_slots, dtype=torch.float64, moments=optimizer.moments
    )


def trial_in(
    bank: AdapterBank, *, weight: float, gradient: float, optim: str = "adamw", decay: float = 0.0
) -> Resident:
    """A trial of rank 2 all of whose weights and gradients are these."""
    spec = TrialSpec(
        trial_id=len(bank.occupied),
        seed=0,
        adapter=AdapterSpec(r=2, lora_alpha=1.0),
        learning_rate=RATE,
        batch_size=1,
        num_steps=9,
        weight_decay=decay,
        max_grad_norm=0.0,
        optim=optim,
    )
    weights_rD = torch.full((2, bank.layout.width), weight, dtype=torch.float64)
    slot = bank.insert(spec.adapter, AdapterState(weights=weights_rD))
    bank.grads_RD[bank.rank_rows(slot)] = gradient
    order = SampleOrder(len(_ROWS), seed=0, batch_size=1)
    return Resident(spec=spec, slot=slot, step=0, order=order, rows=_ROWS)
