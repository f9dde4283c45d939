"""AdamW with 8-bit moments: a quarter of the bytes, where the states of adapters fill a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.kernels.adamw_8bit import BLOCK, BlockMoment, adamw_8bit_step
from cohort.training.optimizers.declaration import OptimizerDeclaration
from cohort.training.optimizers.kinds.adamw import slot_updates
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident

__all__ = ["DECLARATION", "OPTIMIZER", "AdamW8bit"]

DECLARATION = OptimizerDeclaration(
    name="adamw_8bit",
    summary="AdamW with 8-bit moments: a quarter of their bytes",
    reads=("adam_beta1", "adam_beta2", "adam_epsilon"),
    has_own_states=True,
    not_divided={
        "tensor": "its moments are kept in blocks of a whole rank row",
        "pipeline": "its moments are kept in blocks of a whole rank row",
    },
)

_NAMES = ("exp_avg", "exp_avg_sq")


class AdamW8bit(Optimizer):
    """AdamW whose moments are kept as codes of the dynamic map, in blocks of 256 entries of a rank row.

    Source: Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization.
    """

    moments = tuple(
        moment
        for name in _NAMES
        for moment in (
            Moment(f"{name}_codes", torch.uint8),
            Moment(f"{name}_scales", torch.float32, entries_per_value=BLOCK),
        )
    )

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        exp_avg, exp_avg_sq = (
            BlockMoment(codes_RD=bank.moments_RD[f"{name}_codes"], scales_RB=bank.moments_RD[f"{name}_scales"])
            for name in _NAMES
        )
        return adamw_8bit_step(
            bank.weights_RD,
            grads_RD=bank.grads_RD,
            exp_avg=exp_avg,
            exp_avg_sq=exp_avg_sq,
            slots=slot_updates(bank, residents),
            compute_RD=None if bank.compute_RD is bank.weights_RD else bank.compute_RD,
            scaled_D=bank.b_columns_D,
            zero_grads=not bank.writes_gradients,
        )


OPTIMIZER = AdamW8bit()
