"""Muon: the step of each factor is its momentum with all singular values near 1.

Shapes:  r rank · K input width · N output width · X either of them · F factors of one shape
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.optimizers.slot_step import SlotStep, step_slots
from cohort.training.step_samples import Resident

__all__ = ["DECLARATION", "OPTIMIZER", "Muon", "orthogonalised"]

DECLARATION = OptimizerDeclaration(
    name="muon",
    summary="the momentum of each A and B with all singular values near 1",
    not_with={
        "use_dora": "which steps matrices",
        "use_vera": "which steps matrices",
        "modules_to_save": "which steps the factors of linears",
    },
    not_divided={"tensor": "its step needs the singular values of whole factors"},
)

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7
# of the factors that step together, so that what the step needs next to the bank stays small at any rank
_STACK_BYTES = 64 * 1024**2


class Muon(Optimizer):
    """``torch.optim.Muon`` after ``clip_grad_norm_``, for A [r, K] and B [N, r] of every adapted linear.

    Nesterov momentum 0.95, five Newton-Schulz iterations, rates times ``sqrt(max(1, rows / columns))``. Adapters with
    magnitudes, which are no matrices, cannot have it.

    Source: Jordan et al. 2024; the iteration and its coefficients are theirs. We differ: the iteration runs in the
    master weights' dtype, not in bfloat16.
    """

    moments = (Moment("exp_avg"),)

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        columns = bank.layout.columns

        def step(own: SlotStep) -> None:
            mean_RD = own.moments["exp_avg"].lerp_(own.grads_RD, 1 - MOMENTUM)
            nesterov_RD = own.grads_RD.lerp(mean_RD, MOMENTUM)
            rates_D = torch.as_tensor(own.rate, dtype=mean_RD.dtype, device=mean_RD.device).expand(mean_RD.shape[1])
            own.params_RD.mul_(1 - own.spec.weight_decay * rates_D)
            if self._steps_together(mean_RD):
                step_alike(own, nesterov_RD, rates_D, layout=bank.layout)
                return
            for name, places in columns.items():
                r = own.spec.adapter.rank_of(name)
                for factor in (places.a, places.b):
                    # B stands transposed in the bank; the iteration is the same on either side
                    step_rX = orthogonalised(nesterov_RD[:r, factor])
                    rows, width = (r, step_rX.shape[1]) if factor is places.a else (step_rX.shape[1], r)
                    own.params_RD[:r, factor] -= rates_D[factor] * math.sqrt(max(1.0, rows / width)) * step_rX

        return step_slots(bank, residents, step)

    @staticmethod
    def _steps_together(tensor: Tensor) -> bool:
        # a CPU launches nothing, and its bits are recorded matrix by matrix
        return tensor.device.type != "cpu"


def step_alike(own: SlotStep, nesterov_RD: Tensor, rates_D: Tensor, *, layout: AdapterLayout) -> None:
    """Step the factors of one slot, those of one shape together: thousands of small launches become some dozens."""
    alike: dict[tuple[int, int, bool], list[slice]] = {}
    for name, places in layout.columns.items():
        r = own.spec.adapter.rank_of(name)
        for factor in (places.a, places.b):
            alike.setdefault((r, factor.stop - factor.start, factor is places.a), []).append(factor)
    for (r, width, is_a), factors in alike.items():
        # by the shape alone, so that a trial is stepped alike in any pack
        most = max(1, _STACK_BYTES // (r * width * nesterov_RD.element_size()))
        rows, columns = (r, width) if is_a else (width, r)
        for begin in range(0, len(factors), most):
            some = factors[begin : begin + most]
            steps_FrX = orthogonalised(torch.stack([nesterov_RD[:r, factor] for factor in some]))
            # one rate holds for all A, and one for all B
            steps_FrX = steps_FrX * (rates_D[some[0].start] * math.sqrt(max(1.0, rows / columns)))
            for factor, step_rX in zip(some, steps_FrX, strict=True):
                own.params_RD[:r, factor] -= step_rX


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return a matrix with the singular vectors of ``matrix`` and singular values between about 0.7 and 1.2.

    ``matrix`` may be a stack of them [F, ...], each of which is treated alone.
    """
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x: Tensor = matrix.mT if is_tall else matrix
    norm = x.norm() if x.dim() == 2 else torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    x = x / norm.clamp(min=EPS)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


OPTIMIZER = Muon()
