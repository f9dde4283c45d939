"""AdamW: the step of all slots in one launch, each trial with its own numbers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident

__all__ = ["DECLARATION", "OPTIMIZER", "AdamW", "slot_updates"]

DECLARATION = OptimizerDeclaration(
    name="adamw",
    summary="torch.optim.AdamW, one launch for all trials",
    reads=("adam_beta1", "adam_beta2", "adam_epsilon"),
)


def slot_updates(bank: AdapterBank, residents: Sequence[Resident]) -> list[SlotUpdate]:
    """Return what the next step of each resident needs to know."""
    return [
        SlotUpdate(
            row_start=bank.rank_rows(resident.slot).start,
            rank=resident.spec.adapter.num_trained_rows,
            learning_rate=resident.spec.learning_rate_at(resident.step),
            weight_decay=resident.spec.weight_decay,
            beta1=resident.spec.beta1,
            beta2=resident.spec.beta2,
            eps=resident.spec.epsilon,
            step=resident.step + 1,
            # 0 means no clipping to users; to the update it would be a norm that no gradient survives
            max_grad_norm=resident.spec.max_grad_norm or None,
            scaled_rate=resident.spec.loraplus_lr_ratio,
        )
        for resident in residents
    ]


class AdamW(Optimizer):
    """``torch.optim.AdamW`` after ``clip_grad_norm_``, for every slot."""

    moments = (Moment("exp_avg"), Moment("exp_avg_sq"))

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        return adamw_step(
            bank.weights_RD,
            grads_RD=bank.grads_RD,
            exp_avg_RD=bank.moments_RD["exp_avg"],
            exp_avg_sq_RD=bank.moments_RD["exp_avg_sq"],
            slots=slot_updates(bank, residents),
            compute_RD=None if bank.compute_RD is bank.weights_RD else bank.compute_RD,
            scaled_D=bank.b_columns_D,
            zero_grads=not bank.writes_gradients,
        )


OPTIMIZER = AdamW()
