"""The path for CPUs: one frozen product over the stream, adapter products sample by sample.

Bits are the reason for the loop. A product over one sample at its true rank has the same shape alone and in any pack,
so it has the same bits; gradients are added to the sinks in sample order, so micro-batch splits change nothing. The
frozen product is the only one over many rows; its rows are bit-stable when the stream has at least 32 rows, a multiple
of 16.

Shapes:  T rows of the stream · L rows of one sample · K input width · N output width · r true rank
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.kernels.dropout import keep_mask, kept_rows
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["per_sample_backward", "per_sample_forward"]


def _kept_features(
    x_LK: Tensor, *, rows: slice, row_keys_T: Tensor | None, part: LoraPart, probability: float
) -> Tensor | None:
    """Return the dropout mask [L, K] of one sample, None where nothing is dropped."""
    if row_keys_T is None or probability == 0.0:
        return None
    return keep_mask(
        row_keys_T[rows],
        module_key=part.module_key,
        num_features=x_LK.shape[1],
        probability=probability,
        first_feature=part.first_feature,
    )


def _dropped(x_LK: Tensor, keep_LK: Tensor | None, *, probability: float) -> Tensor:
    if keep_LK is None:
        # where rows are no multiple of 16 bytes a first row is aligned by chance, and the product's bits follow
        return x_LK if x_LK.shape[1] * x_LK.element_size() % 16 == 0 else x_LK.clone()
    return kept_rows(x_LK, keep_LK, probability=probability)


def per_sample_forward(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None,
) -> tuple[Tensor, list[list[Tensor]]]:
    """Return y [T, N] and, by part and sample, the kept intermediate S [L, r]."""
    y_TN = frozen.forward(x_TK)
    kept: list[list[Tensor]] = []
    for part in parts:
        y_part = y_TN[:, part.columns]
        intermediates = []
        for span in segments.samples:
            if span.slot < 0:
                break
            rows, rank_rows = slice(span.start, span.stop), slots.rank_rows(span.slot)
            probability = slots.dropouts[span.slot]
            x_LK = x_TK[rows]
            keep_LK = _kept_features(x_LK, rows=rows, row_keys_T=row_keys_T, part=part, probability=probability)
            x_LK = _dropped(x_LK, keep_LK, probability=probability)
            s_Lr = x_LK @ part.a_RK[rank_rows].T
            y_part[rows].add_(s_Lr @ part.b_RN[rank_rows], alpha=slots.scales[span.slot])
            intermediates.append(s_Lr)
        kept.append(intermediates)
    return y_TN, kept


def per_sample_backward(
    dy_TN: Tensor,
    *,
    x_TK: Tensor,
    kept: Sequence[Sequence[Tensor]],
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None,
) -> Tensor:
    """Return dx [T, K] and add every sample's dA and dB to the parts' sinks, in sample order."""
    dx_TK = frozen.grad_input(dy_TN)
    for part, intermediates in zip(parts, kept, strict=True):
        assert part.grad_a_RK is not None, "backward needs sinks"
        assert part.grad_b_RN is not None, "backward needs sinks"
        # samples of no adapter stand last and keep nothing
        for span, s_Lr in zip(segments.samples, intermediates, strict=False):
            rows, rank_rows = slice(span.start, span.stop), slots.rank_rows(span.slot)
            probability = slots.dropouts[span.slot]
            dy_LN = dy_TN[rows, part.columns] * slots.scales[span.slot]
            ds_Lr = dy_LN @ part.b_RN[rank_rows].T
            x_LK = x_TK[rows]
            keep_LK = _kept_features(x_LK, rows=rows, row_keys_T=row_keys_T, part=part, probability=probability)
            x_LK = _dropped(x_LK, keep_LK, probability=probability)
            part.grad_b_RN[rank_rows].add_(s_Lr.T @ dy_LN)
            part.grad_a_RK[rank_rows].add_(ds_Lr.T @ x_LK)
            dropped = ds_Lr @ part.a_RK[rank_rows]
            dx_TK[rows].add_(_dropped(dropped, keep_LK, probability=probability))
    return dx_TK
