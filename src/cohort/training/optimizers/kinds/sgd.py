"""SGD: no moments, and weight decay as a part of the gradient, as torch has it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.optimizers.slot_step import SlotStep, step_slots
from cohort.training.step_samples import Resident

__all__ = ["DECLARATION", "OPTIMIZER", "Sgd"]

DECLARATION = OptimizerDeclaration(
    name="sgd",
    summary="torch.optim.SGD without momentum",
)


class Sgd(Optimizer):
    """``torch.optim.SGD`` without momentum after ``clip_grad_norm_``, which is transformers' ``optim: sgd``."""

    moments: tuple[Moment, ...] = ()

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        return step_slots(bank, residents, _step)


def _step(own: SlotStep) -> None:
    own.params_RD.sub_(own.rate * own.grads_RD.add(own.params_RD, alpha=own.spec.weight_decay))


OPTIMIZER = Sgd()
