"""What optimizers in plain torch share: clipping and what surrounds the step of each slot.

Shapes:  R rank rows that a slot trains · D entries of a rank row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec

__all__ = ["SlotStep", "step_slots"]

NORM_EPS = 1e-6  # of torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotStep:
    """One slot's step: views of the bank that may be changed in place.

    Attributes:
        grads_RD: Clipped; a tensor of its own.
        moments: By name, as the bank keeps them.
        rate: The learning rate of this step, schedule applied: a number, or [D] where LoRA+ gives B its own.
    """

    spec: TrialSpec
    params_RD: Tensor
    grads_RD: Tensor
    moments: dict[str, Tensor]
    rate: float | Tensor


@torch.no_grad()
def step_slots(bank: AdapterBank, residents: Sequence[Resident], step: Callable[[SlotStep], None]) -> Tensor:
    """Clip and step each of ``residents`` with ``step``; return their norms before clipping.

    The compute copy is refreshed and gradients are zeroed as :class:`~.optimizer.Optimizer` promises. Nothing waits.
    """
    norms = torch.zeros(len(residents), dtype=bank.weights_RD.dtype, device=bank.weights_RD.device)
    for index, resident in enumerate(residents):
        spec, start = resident.spec, bank.rank_rows(resident.slot).start
        rows = slice(start, start + spec.adapter.num_trained_rows)
        grads_RD = bank.grads_RD[rows]
        norm = torch.linalg.vector_norm(grads_RD, dtype=torch.float64).to(grads_RD.dtype)
        norms[index] = norm
        clip = torch.clamp(spec.max_grad_norm / (norm + NORM_EPS), max=1.0) if spec.max_grad_norm else 1.0
        rate: float | Tensor = spec.learning_rate_at(resident.step)
        if spec.loraplus_lr_ratio != 1.0:
            rate = rate * (1.0 + (spec.loraplus_lr_ratio - 1.0) * bank.b_columns_D.to(grads_RD.dtype))
        step(
            SlotStep(
                spec=spec,
                params_RD=bank.weights_RD[rows],
                grads_RD=grads_RD * clip,
                moments={name: moment[rows] for name, moment in bank.moments_RD.items()},
                rate=rate,
            )
        )
        bank.refresh(resident.slot)
        if not bank.writes_gradients:
            grads_RD.zero_()
    return norms
