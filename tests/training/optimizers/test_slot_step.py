"""SGD, Lion and Muon step a bank's slots as torch (Lion: the paper) steps single factors, each trial with its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.order import SampleOrder
from cohort.tasks.hyperparameters import SEARCHABLE
from cohort.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

LAYOUT = AdapterLayout({"q": (24, 40), "v": (24, 8)})
ROWS = random_rows(4)


def resident(trial_id: int, *, optim: str, r: int, slot: int, **fields: Any) -> Resident:
    spec = TrialSpec(
        trial_id=trial_id,
        seed=0,
        adapter=AdapterSpec(r=r, lora_alpha=1.0),
        learning_rate=1e-2,
        batch_size=1,
        num_steps=9,
        optim=optim,
        weight_decay=0.1,
        **fields,
    )
    return Resident(spec=spec, slot=slot, step=0, order=SampleOrder(4, seed=0, batch_size=1), rows=ROWS)


class Lion(torch.optim.Optimizer):
    """Program 1 of the paper."""

    def __init__(self, groups: Any, *, weight_decay: float) -> None:
        super().__init__(groups, {"weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                update = torch.sign(0.9 * m + 0.1 * p.grad)
                p -= group["lr"] * (update + group["weight_decay"] * p)
                m.copy_(0.99 * m + 0.01 * p.grad)


KINDS: dict[str, Any] = {"sgd": torch.optim.SGD, "lion": Lion, "muon": torch.optim.Muon, "adamw": torch.optim.AdamW}


def factors(weights: Tensor) -> list[Tensor]:
    found = []
    for places in LAYOUT.columns.values():
        found += [weights[:, places.a].clone(), weights[:, places.b].T.clone()]
    return found


@pytest.mark.parametrize("ratio", [1.0, 4.0])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_each_slot_steps_as_its_optimizer_steps_factors(ratio: float, max_grad_norm: float) -> None:
    bank = AdapterBank(LAYOUT, num_slots=4, num_rank_rows=64, dtype=torch.float64, moments=DEFAULT_OPTIMIZER.moments)
    residents, references, optimizers = [], [], []
    for index, (optim, kind) in enumerate(KINDS.items()):
        r = 3 + index
        weights = torch.randn(r, LAYOUT.width, dtype=torch.float64)
        own = resident(index, optim=optim, r=r, slot=index, loraplus_lr_ratio=ratio, max_grad_norm=max_grad_norm)
        assert bank.insert(own.spec.adapter, AdapterState(weights=weights)) == index
        parameters = [torch.nn.Parameter(factor) for factor in factors(weights)]
        groups = [{"params": [p], "lr": 1e-2 * (ratio if place % 2 else 1.0)} for place, p in enumerate(parameters)]
        optimizers.append(kind(groups, weight_decay=0.1))
        residents.append(own)
        references.append(parameters)
    for step in range(3):
        norms = []
        for own, parameters, optimizer in zip(residents, references, optimizers, strict=True):
            gradient = torch.randn(own.spec.adapter.r, LAYOUT.width, dtype=torch.float64)
            bank.grads_RD[bank.rank_rows(own.slot)] = gradient
            for p, grad in zip(parameters, factors(gradient), strict=True):
                p.grad = grad
            norms.append(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm or float("inf")))
            optimizer.step()
        found = DEFAULT_OPTIMIZER.update(bank, [replace_step(own, step) for own in residents])
        torch.testing.assert_close(found, torch.stack(norms))
        assert not bank.grads_RD.any(), "the next pass adds to zeros"
    for own, parameters in zip(residents, references, strict=True):
        # torch's Muon iterates in bfloat16, which has three digits: three steps of 1e-2 agree to 1e-3
        tolerance = 2e-3 * ratio if own.spec.optim == "muon" else 1e-9
        for mine, theirs in zip(factors(bank.read(own.slot).weights), parameters, strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=tolerance)


def replace_step(own: Resident, step: int) -> Resident:
    return replace(own, step=step)


def test_the_task_file_offers_all_of_them() -> None:
    assert set(SEARCHABLE["optim"].field.options) == set(OPTIMIZERS)
