"""AdamW's step of a bank: the settings of each trial reach its own slot, as torch applies them."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.order import SampleOrder
from cohort.training.optimizers.kinds.adamw import AdamW
from cohort.training.schedules import Schedule
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

ROWS = random_rows(4)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_each_slot_steps_as_torch_steps_it(max_grad_norm: float) -> None:
    bank = AdapterBank(AdapterLayout({"a": (3, 5)}), num_slots=3, num_rank_rows=48, moments=AdamW.moments)
    residents, references = [], []
    for trial_id, (r, rate) in enumerate([(4, 1e-2), (7, 1e-1), (2, 1e-3)]):
        spec = TrialSpec(
            trial_id=trial_id,
            seed=0,
            adapter=AdapterSpec(r=r, lora_alpha=1.0),
            learning_rate=rate,
            batch_size=1,
            num_steps=4,
            schedule=Schedule.LINEAR,
            weight_decay=0.1 * trial_id,
            beta1=(0.9, 0.5, 0.0)[trial_id],
            beta2=(0.999, 0.9, 0.5)[trial_id],
            epsilon=(1e-8, 1e-2, 1e-30)[trial_id],
            max_grad_norm=max_grad_norm,
        )
        weights = torch.randn(r, bank.layout.width)
        slot = bank.insert(spec.adapter, AdapterState(weights=weights))
        order = SampleOrder(len(ROWS), seed=0, batch_size=1)
        residents.append(Resident(spec=spec, slot=slot, step=0, order=order, rows=ROWS))
        references.append(torch.nn.Parameter(weights.clone()))
    optimizers = [
        torch.optim.AdamW(
            [reference],
            weight_decay=resident.spec.weight_decay,
            betas=(resident.spec.beta1, resident.spec.beta2),
            eps=resident.spec.epsilon,
        )
        for reference, resident in zip(references, residents, strict=True)
    ]
    for step in range(3):
        norms = []
        for resident, reference, optimizer in zip(residents, references, optimizers, strict=True):
            resident.step = step
            reference.grad = torch.randn_like(reference)
            bank.grads_RD[bank.rank_rows(resident.slot)] = reference.grad
            norms.append(torch.nn.utils.clip_grad_norm_([reference], max_grad_norm or float("inf")))
            optimizer.param_groups[0]["lr"] = resident.spec.learning_rate * (1 - step / 4)
            optimizer.step()
        found = AdamW().update(bank, residents)
        torch.testing.assert_close(found, torch.stack(norms))
        assert not bank.grads_RD.any(), "the next pass adds to zeros"
    for resident, reference in zip(residents, references, strict=True):
        torch.testing.assert_close(bank.read(resident.slot).weights, reference.detach())
