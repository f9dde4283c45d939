"""The definition: a plain loop over adapters, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.dropout import dropout_rows
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["packed_linear_reference"]


def packed_linear_reference(
    x_TK: Tensor,
    *,
    weight_NK: Tensor,
    bias_N: Tensor | None,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None = None,
) -> Tensor:
    """Return ``x W^T (+ bias)`` plus ``s_z * drop(x_z) A_z^T B_z^T`` on the rows of each slot z.

    Gradients flow to ``x`` and to every part's ``a_RK`` and ``b_RN`` through autograd; sinks are ignored.

    Source: ALTO 6.1, mLoRA 3.3, PLoRA App. C.
    """
    y_TN = torch.nn.functional.linear(x_TK, weight_NK, bias_N)
    for part in parts:
        added = []
        for slot in range(slots.num_slots):
            rows, rank_rows = segments.rows(slot), slots.rank_rows(slot)
            x_zK = x_TK[rows]
            if row_keys_T is not None:
                x_zK = dropout_rows(
                    x_zK,
                    row_keys_T[rows],
                    module_key=part.module_key,
                    probability=slots.dropouts[slot],
                    first_feature=part.first_feature,
                )
            added.append(slots.scales[slot] * (x_zK @ part.a_RK[rank_rows].T) @ part.b_RN[rank_rows])
        added.append(x_TK.new_zeros(x_TK.shape[0] - segments.num_adapter_rows, part.b_RN.shape[1]))
        padding = (part.column_start, y_TN.shape[1] - part.columns.stop)
        y_TN = y_TN + torch.nn.functional.pad(torch.cat(added), padding)
    return y_TN
