"""The public op: a whole feed-forward block for every adapter in a packed stream."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.packed_linear import FrozenProduct, LaunchTables, LoraPart, SlotTable, packed_linear
from cohort.kernels.packed_linear.checks import check_parts, check_stream
from cohort.kernels.packed_mlp.autograd import PackedMlpFunction
from cohort.kernels.segments import SegmentTable
from cohort.kernels.swiglu import swiglu

__all__ = ["NARROW_RANK", "WIDEST_FUSED_RANK", "fuses", "packed_mlp"]

# Up to here the gradient pass costs less than the passes it replaces.
NARROW_RANK = 32
# Above it the gradient pass has no registers left for its sums.
WIDEST_FUSED_RANK = 64


def packed_mlp(
    x_TD: Tensor,
    *,
    gate_up: FrozenProduct,
    gate_up_parts: Sequence[LoraPart],
    down: FrozenProduct,
    down_parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None = None,
    tables: LaunchTables | None = None,
    backend: Backend | None = None,
    fused: bool = True,
) -> Tensor:
    """Return ``down(silu(gate(x)) * up(x))`` [T, D], each product with every slot's LoRA term on that slot's rows.

    With ``fused``, and where :func:`fuses` says so, it is one node whose LoRA terms share the activation's passes;
    otherwise exactly ``packed_linear``, ``swiglu``, ``packed_linear``. Gradients flow to ``x`` and to each part's
    factors (into its sinks where it has them).

    Args:
        x_TD: The stream [T, D].
        gate_up: The fused frozen product, gate's rows above up's, [2F, D].
        gate_up_parts: Stacked factors of gate and up, or of those that are adapted.
        down: The frozen product [D, F].
        down_parts: Stacked factors of down, empty where it is not adapted.
        slots: Ranks, scales and dropout of the slots.
        segments: Which rows belong to which slot and sample.
        row_keys_T: int64 [T] dropout keys; None in evaluation, where nothing is dropped.
        tables: Device tables of ``segments`` and ``slots``; built on demand when None.
        backend: Triton's kernels or plain torch; by default what :mod:`cohort.kernels.backend` says of ``x``.
        fused: Take the fused kernels where they are worth it.

    Raises:
        ShapeError: a width disagrees with its neighbour.
        SegmentError: ``segments`` covers another number of rows or slots.
    """
    if gate_up.out_features != 2 * down.in_features:
        raise ShapeError(
            f"gate and up are {gate_up.out_features} wide together but down takes {down.in_features}: expected twice it"
        )
    chosen = choose_backend(x_TD, backend=backend)
    suits = fuses(x_TD, gate_up_parts=gate_up_parts, down_parts=down_parts, slots=slots)
    if not fused or chosen is not Backend.TRITON or not suits:
        gate_up_TF = packed_linear(
            x_TD,
            frozen=gate_up,
            parts=gate_up_parts,
            slots=slots,
            segments=segments,
            row_keys_T=row_keys_T,
            tables=tables,
            backend=backend,
        )
        return packed_linear(
            swiglu(gate_up_TF, backend=backend),
            frozen=down,
            parts=down_parts,
            slots=slots,
            segments=segments,
            row_keys_T=row_keys_T,
            tables=tables,
            backend=backend,
        )
    check_stream(x_TD, frozen=gate_up, slots=slots, segments=segments, tables=tables, row_keys_T=row_keys_T)
    for frozen, own in ((gate_up, gate_up_parts), (down, down_parts)):
        check_parts(own, x_TK=x_TD, frozen=frozen, slots=slots)
        _check_width(own, frozen=frozen)
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    parts = (*gate_up_parts, *down_parts)
    tables = tables or implementation("packed_linear", chosen).launch_tables(segments, slots, x_TD.device)
    factors = [factor for part in parts for factor in (part.a_RK, part.b_RN)]
    result: Tensor = PackedMlpFunction.apply(x_TD, gate_up, down, *parts, tables, row_keys_T, *factors)
    return result


def fuses(x_TD: Tensor, *, gate_up_parts: Sequence[LoraPart], down_parts: Sequence[LoraPart], slots: SlotTable) -> bool:
    """Tell whether the fused kernels are worth it for this pack.

    They are in 16 bits, when gate, up and down are all adapted, no rank is above :data:`WIDEST_FUSED_RANK` and at
    most a third of the adapters is above :data:`NARROW_RANK`. The README has the measurements behind both numbers.
    """
    ranks = [rank for rank in slots.ranks if rank > 0]
    num_wide = sum(rank > NARROW_RANK for rank in ranks)
    adapted = len(gate_up_parts) == 2 and len(down_parts) == 1
    suits = max(ranks, default=0) <= WIDEST_FUSED_RANK and 3 * num_wide <= len(ranks)
    return adapted and suits and x_TD.element_size() == 2


def _check_width(parts: Sequence[LoraPart], *, frozen: FrozenProduct) -> None:
    width = sum(part.b_RN.shape[1] for part in parts)
    if width != frozen.out_features:
        raise ShapeError(f"the parts are {width} wide together but their frozen linear {frozen.out_features}")
