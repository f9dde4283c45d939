"""The public op: one linear for every adapter in a packed stream, one autograd node whichever path computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cohort.core.errors import SegmentError, ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.deferred_lora_term import Apart
from cohort.kernels.packed_linear.checks import check_parts, check_stream
from cohort.kernels.packed_linear.choice.augmented import PaddedRows
from cohort.kernels.packed_linear.frozen_product import FrozenProduct, GivenGradient, handed_gradient_of
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.per_sample import per_sample_backward, per_sample_forward, term_pieces
from cohort.kernels.packed_linear.per_slot import per_slot_forward
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["input_room", "packed_linear", "product_and_term"]


def packed_linear(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None = None,
    tables: LaunchTables | RowTables | None = None,
    backend: Backend | None = None,
    room: PaddedRows | None = None,
) -> Tensor:
    """Return the frozen product plus every slot's LoRA term on that slot's rows.

    ``y_z = x_z W^T (+ bias) + s_z * drop(x_z) A_z^T B_z^T``; rows of no adapter get the frozen product alone. Of
    segments that multiply whole slots, filler behind the last sample may get an adapter's term as well.
    ``parts`` are siblings (q, k, v or gate, up) that share ``x`` and one fused frozen product, each in its own columns.
    Gradients flow to ``x``, where it requires one, and to each part's factors (into its sinks where it has them).

    Args:
        x_TK: The stream [T, K].
        frozen: The frozen product, W [N, K].
        parts: Stacked factors of each sibling, in the order of their columns, in ``x``'s dtype.
        row_keys_T: int64 [T] dropout keys; None in evaluation, where nothing is dropped.
        tables: Device tables of ``segments`` and ``slots``, built once per step and shared by its linears; the grouped
            kernels build (and briefly keep) their own when None. With :class:`RowTables` each row is multiplied alone,
            for short streams without gradients.
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
    if row_keys_T is not None and any(part.first_feature for part in parts):
        # the grouped kernels number the features they drop from 0
        chosen = Backend.REFERENCE
    if segments.multiplies_slots and (torch.is_grad_enabled() or row_keys_T is not None):
        raise SegmentError(
            "segments that multiply whole slots have neither gradients nor dropout; use torch.no_grad(), or a table "
            "without multiplies_slots"
        )
    if isinstance(tables, RowTables):
        return _row_by_row(x_TK, frozen=frozen, parts=parts, tables=tables)
    if chosen is Backend.REFERENCE and not torch.is_grad_enabled():
        # nothing to go back through, and autograd would take longer than a product of a row
        return _without_graph(x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=row_keys_T)
    # autograd sees the factors whose gradients it is to hand on
    factors = [factor for part in parts if part.grad_a_RK is None for factor in (part.a_RK, part.b_RN)]
    if not x_TK.requires_grad and len(factors) < 2 * len(parts) and torch.is_grad_enabled():
        # a stream without a gradient begins the graph here: the sinks get theirs, and dx is not computed
        factors.append(torch.empty(0, requires_grad=True))
    call = _Call(frozen, tuple(parts), slots, segments, row_keys_T, chosen, tables, room)
    result: Tensor = _PackedLinearFunction.apply(x_TK, call, *factors)
    return result


def _without_graph(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None,
) -> Tensor:
    if segments.multiplies_slots:
        return per_slot_forward(x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments)
    own = segments if x_TK.device.type == "cpu" else segments.by_slot()
    return per_sample_forward(x_TK, frozen=frozen, parts=parts, slots=slots, segments=own, row_keys_T=row_keys_T)[0]


class _Call(NamedTuple):
    """What a call of the linear is made of besides tensors with gradients: one argument, since each costs autograd."""

    frozen: FrozenProduct
    parts: tuple[LoraPart, ...]
    slots: SlotTable
    segments: SegmentTable
    row_keys_T: Tensor | None
    backend: Backend
    tables: LaunchTables | None
    room: PaddedRows | None


def product_and_term(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    tables: RowTables,
) -> Apart | None:
    """Return what :func:`packed_linear` returns with row tables, before the term is added; None where it cannot.

    Both halves are computed at the same time where ``tables`` have a stream for the terms and a graph is recorded.
    It can where up to three siblings own all columns of the product. The arguments and errors are those of
    :func:`packed_linear`.
    """
    kernels = implementation("packed_linear.rows", Backend.TRITON)
    if not 0 < len(parts) <= kernels.MOST_PARTS or sum(part.b_RN.shape[1] for part in parts) != frozen.out_features:
        return None
    check_stream(x_TK, frozen=frozen, slots=slots, segments=segments, tables=tables, row_keys_T=None)
    check_parts(parts, x_TK=x_TK, frozen=frozen, slots=slots)
    _refuse_gradients()
    x_TK = x_TK if x_TK.stride(1) == 1 else x_TK.contiguous()
    # allocated before the side begins, and alive until it has joined
    term_TN = x_TK.new_empty(x_TK.shape[0], frozen.out_features, dtype=torch.float32)
    (terms,) = kernels.start_row_terms(x_TK, parts=parts, tables=tables)
    terms.write_apart(term_TN)
    y_TN = frozen.forward(x_TK)
    terms.join()
    return Apart(y_TN, term_TN)


def _refuse_gradients() -> None:
    if torch.is_grad_enabled():
        raise SegmentError("row tables have no gradients; use torch.no_grad(), or LaunchTables")


def _row_by_row(x_TK: Tensor, *, frozen: FrozenProduct, parts: Sequence[LoraPart], tables: RowTables) -> Tensor:
    _refuse_gradients()
    if not parts:
        return frozen.forward(x_TK)
    terms = implementation("packed_linear.rows", Backend.TRITON).start_row_terms(x_TK, parts=parts, tables=tables)
    y_TN = frozen.forward(x_TK)
    for some in terms:
        some.add_to(y_TN)
    return y_TN


def input_room(
    like: Tensor, *, frozen: FrozenProduct, parts: Sequence[LoraPart], tables: LaunchTables | RowTables | None
) -> PaddedRows | None:
    """Return empty rows [T, K] with room behind them, to write the input of a linear into whose product will be
    augmented; None where it will not, and any input will do.

    Args:
        like: Any tensor of the pass: gives dtype, device and with them the backend.
        frozen, parts: The linear, as :func:`packed_linear` takes them.
        tables: The tables of the pass; without them nothing is augmented.
    """
    if tables is None or isinstance(tables, RowTables) or not parts or choose_backend(like) is not Backend.TRITON:
        return None
    room: PaddedRows | None = implementation("packed_linear", Backend.TRITON).room_for(
        like, frozen=frozen, parts=parts, tables=tables
    )
    return room


class _PackedLinearFunction(torch.autograd.Function):
    """``forward(x, call, *factors)``.

    ``factors`` repeats ``a_RK, b_RN`` of each part without sinks: their gradients are returned, others are added to the
    sinks. One more tensor may follow, of no entries, for a graph that begins here.
    """

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, call: _Call, *factors: Tensor) -> Tensor:
        del factors  # autograd alone needs them; the parts hold the same tensors
        ctx.call = call
        frozen, parts, slots, segments, row_keys_T, backend, tables, room = call
        if backend is Backend.TRITON:
            kernels = implementation("packed_linear", backend)
            ctx.tables = tables or kernels.launch_tables(segments, slots, x_TK.device)
            y_TN, s_PTC = kernels.grouped_forward(
                x_TK, frozen=frozen, parts=parts, tables=ctx.tables, row_keys_T=row_keys_T, room=room
            )
            ctx.save_for_backward(x_TK, s_PTC)
            ctx.grouped_backward = kernels.grouped_backward
            ctx.handed_gradient = None if ctx.tables.exact else handed_gradient_of(frozen)
            result: Tensor = y_TN
            return result
        ctx.tables = None
        # bits matter on the CPU alone; a GPU without Triton has fewer, larger products slot by slot
        ctx.segments = segments if x_TK.device.type == "cpu" else segments.by_slot()
        drops = row_keys_T is not None
        ctx.pieces = term_pieces(x_TK, frozen=frozen, parts=parts, slots=slots, segments=ctx.segments, drops=drops)
        y_TN, kept = per_sample_forward(
            x_TK,
            frozen=frozen,
            parts=parts,
            slots=slots,
            segments=ctx.segments,
            row_keys_T=row_keys_T,
            pieces=ctx.pieces,
        )
        ctx.save_for_backward(x_TK, *(s for intermediates in kept for s in intermediates))
        ctx.counts = [len(intermediates) for intermediates in kept]
        return y_TN

    @staticmethod
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        parts: list[LoraPart] = []
        returned: list[Tensor | None] = []
        for part in ctx.call.parts:
            own = part.grad_a_RK is None
            if own:
                sinks = torch.zeros_like(part.a_RK), torch.zeros_like(part.b_RN)
                part = replace(part, grad_a_RK=sinks[0], grad_b_RN=sinks[1])
                returned += sinks
            parts.append(part)
        dx_TK = _grouped_backward(ctx, dy_TN, parts) if ctx.tables is not None else _looped_backward(ctx, dy_TN, parts)
        found = (dx_TK if ctx.needs_input_grad[0] else None, None, *returned)
        return (*found, *[None] * (len(ctx.needs_input_grad) - len(found)))


def _grouped_backward(ctx: Any, dy_TN: Tensor, parts: Sequence[LoraPart]) -> Tensor | None:
    x_TK, s_PTC = ctx.saved_tensors
    dx_TK: Tensor | None = ctx.grouped_backward(
        dy_TN,
        x_TK=x_TK,
        s_PTC=s_PTC,
        frozen=GivenGradient.of(ctx.call.frozen, ctx.handed_gradient, dy_TN),
        parts=parts,
        tables=ctx.tables,
        row_keys_T=ctx.call.row_keys_T,
        with_dx=ctx.needs_input_grad[0],
    )
    return dx_TK


def _looped_backward(ctx: Any, dy_TN: Tensor, parts: Sequence[LoraPart]) -> Tensor | None:
    x_TK, *flat = ctx.saved_tensors
    kept, start = [], 0
    for count in ctx.counts:
        kept.append(flat[start : start + count])
        start += count
    return per_sample_backward(
        dy_TN,
        x_TK=x_TK,
        kept=kept,
        frozen=ctx.call.frozen,
        parts=parts,
        slots=ctx.call.slots,
        segments=ctx.segments,
        row_keys_T=ctx.call.row_keys_T,
        with_dx=ctx.needs_input_grad[0],
        # pieces name their parts, and sinks made for the occasion are in others
        pieces=ctx.pieces if all(part.grad_a_RK is not None for part in ctx.call.parts) else None,
    )
