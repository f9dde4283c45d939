"""Lion: steps by the sign of a mean of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.optimizers.slot_step import SlotStep, step_slots
from cohort.training.step_samples import Resident

__all__ = ["DECLARATION", "OPTIMIZER", "Lion"]

DECLARATION = OptimizerDeclaration(
    name="lion",
    summary="steps by the sign of a mean of gradients",
    reads=("adam_beta1",),
)

# the paper's, section 3.1; AdamW's 0.999 would remember too long
BETA2 = 0.99


class Lion(Optimizer):
    """Lion after ``clip_grad_norm_``, with decoupled weight decay.

    The betas are ``adam_beta1``, 0.9 by default as in the paper, and 0.99.

    A rate a third to a tenth of AdamW's does about as much: every entry moves by the whole rate.

    Source: Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, Program 1.
    """

    moments = (Moment("exp_avg"),)

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        return step_slots(bank, residents, _step)


def _step(own: SlotStep) -> None:
    mean_RD = own.moments["exp_avg"]
    sign_RD = mean_RD.lerp(own.grads_RD, 1 - own.spec.beta1).sign_()
    own.params_RD.sub_(own.rate * sign_RD.add_(own.params_RD, alpha=own.spec.weight_decay))
    mean_RD.lerp_(own.grads_RD, 1 - BETA2)


OPTIMIZER = Lion()
