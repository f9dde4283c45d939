"""The public op: one linear for every adapter in a packed stream."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.packed_linear.autograd import PackedLinearFunction
from cohort.kernels.packed_linear.checks import check_parts, check_stream
from cohort.kernels.packed_linear.choice.augmented import PaddedRows
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["input_room", "packed_linear"]


def packed_linear(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None = None,
    tables: LaunchTables | None = None,
    backend: Backend | None = None,
    room: PaddedRows | None = None,
) -> Tensor:
    """Return the frozen product plus every slot's LoRA term on that slot's rows.

    ``y_z = x_z W^T (+ bias) + s_z * drop(x_z) A_z^T B_z^T``; rows of no adapter get the frozen product alone.
    ``parts`` are siblings (q, k, v or gate, up) that share ``x`` and one fused frozen product, each in its own columns.
    Gradients flow to ``x`` and to each part's factors (into its sinks where it has them).

    Args:
        x_TK: The stream [T, K].
        frozen: The frozen product, W [N, K].
        parts: Stacked factors of each sibling, in the order of their columns, in ``x``'s dtype.
        slots: Ranks, scales and dropout of the slots.
        segments: Which rows belong to which slot and sample.
        row_keys_T: int64 [T] dropout keys; None in evaluation, where nothing is dropped.
        tables: Device tables of ``segments`` and ``slots``, built once per step and shared by its linears; the grouped
            kernels build (and briefly keep) their own when None.
        room: The wider buffer that ``x`` is the beginning of, from :func:`input_room` for the same linear and pass. Its
            further columns are written here. None: the product is not augmented.
        backend: Triton's grouped kernels or plain torch; by default what :mod:`cohort.kernels.backend` says of ``x``.

    Raises:
        ShapeError: a shape disagrees with its neighbour's, or ``x`` is not in ``room``.
        SegmentError: ``segments`` covers another number of rows or slots.
        OperandError: ``x``, the weight and the factors are not of one dtype and device, or ``frozen`` is no frozen
            product.

    Source: ALTO 6.1 and A.1, mLoRA 3.3, PLoRA App. C, LoRAFusion 4.2. We differ: ranks, token counts and batch sizes
    vary freely in one pack, and dropout masks do not depend on the place in it.
    """
    check_stream(x_TK, frozen=frozen, slots=slots, segments=segments, tables=tables, row_keys_T=row_keys_T)
    check_parts(parts, x_TK=x_TK, frozen=frozen, slots=slots)
    if room is not None and not room.holds(x_TK):
        raise ShapeError(
            f"x {tuple(x_TK.shape)} of strides {x_TK.stride()} is not the first {room.width} columns of its room of "
            f"strides {room.buffer_TX.stride()}; write it into input_room's rows_TK or give no room"
        )
    # kernels read rows whose entries lie one after the other
    x_TK = x_TK if x_TK.stride(1) == 1 else x_TK.contiguous()
    chosen = choose_backend(x_TK, backend=backend) if parts else Backend.REFERENCE
    factors = [factor for part in parts for factor in (part.a_RK, part.b_RN)]
    result: Tensor = PackedLinearFunction.apply(
        x_TK, frozen, tuple(parts), slots, segments, row_keys_T, chosen, tables, room, *factors
    )
    return result


def input_room(
    like: Tensor, *, frozen: FrozenProduct, parts: Sequence[LoraPart], tables: LaunchTables | None
) -> PaddedRows | None:
    """Return empty rows [T, K] with room behind them, to write the input of a linear into whose product will be
    augmented; None where it will not, and any input will do.

    Args:
        like: Any tensor of the pass: gives dtype, device and with them the backend.
        frozen, parts: The linear, as :func:`packed_linear` takes them.
        tables: Of the pass; without them nothing is augmented.
    """
    if tables is None or not parts or choose_backend(like) is not Backend.TRITON:
        return None
    room: PaddedRows | None = implementation("packed_linear", Backend.TRITON).room_for(
        like, frozen=frozen, parts=parts, tables=tables
    )
    return room
