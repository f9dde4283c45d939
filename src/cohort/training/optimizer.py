"""The optimizer step of all slots: clip and AdamW in one launch, each trial with its own numbers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.core.errors import CohortError
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.training.step_samples import Resident

__all__ = ["UnfinishedUpdateError", "update_slots"]


class UnfinishedUpdateError(CohortError):
    """An optimizer step broke off: weights and moments of the trials that were stepping are no longer known."""


def update_slots(bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
    """Clip and step the slots of all ``residents`` in place; return the norms before clipping [number of residents].

    Raises:
        UnfinishedUpdateError: the launch failed; who was stepped is not known.
    """
    updates = [
        SlotUpdate(
            row_start=bank.rank_rows(resident.slot).start,
            rank=resident.spec.adapter.r,
            learning_rate=resident.spec.learning_rate_at(resident.step),
            weight_decay=resident.spec.weight_decay,
            beta1=resident.spec.beta1,
            beta2=resident.spec.beta2,
            eps=resident.spec.epsilon,
            step=resident.step + 1,
            # 0 means no clipping to users; to the update it would be a norm that no gradient survives
            max_grad_norm=resident.spec.max_grad_norm or None,
        )
        for resident in residents
    ]
    try:
        return adamw_step(
            bank.weights_RD,
            grads_RD=bank.grads_RD,
            exp_avg_RD=bank.exp_avg_RD,
            exp_avg_sq_RD=bank.exp_avg_sq_RD,
            slots=updates,
            compute_RD=None if bank.compute_RD is bank.weights_RD else bank.compute_RD,
            zero_grads=not bank.writes_gradients,
        )
    except Exception as error:
        raise UnfinishedUpdateError(f"an optimizer step broke off: {error}") from error
