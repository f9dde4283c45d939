"""The definition: packed linear, gated activation, packed linear, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.packed_linear import LoraPart, SlotTable
from cohort.kernels.packed_linear.reference import packed_linear_reference
from cohort.kernels.segments import SegmentTable

__all__ = ["packed_mlp_reference"]


def packed_mlp_reference(
    x_TD: Tensor,
    *,
    gate_up_weight_FD: Tensor,
    gate_up_parts: Sequence[LoraPart],
    down_weight_DF: Tensor,
    down_parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None = None,
) -> Tensor:
    """Return ``down(silu(gate(x)) * up(x))``, each of the three with its adapters; ``gate_up`` is gate above up."""
    gate_up_TF = packed_linear_reference(
        x_TD,
        weight_NK=gate_up_weight_FD,
        bias_N=None,
        parts=gate_up_parts,
        slots=slots,
        segments=segments,
        row_keys_T=row_keys_T,
    )
    gate_TF, up_TF = gate_up_TF.chunk(2, dim=1)
    return packed_linear_reference(
        torch.nn.functional.silu(gate_TF) * up_TF,
        weight_NK=down_weight_DF,
        bias_N=None,
        parts=down_parts,
        slots=slots,
        segments=segments,
        row_keys_T=row_keys_T,
    )
