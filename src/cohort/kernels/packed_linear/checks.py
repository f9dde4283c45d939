"""Whether the operands of a packed linear fit each other: wrong ones would be read past their end on a GPU.

Everything is decided from shapes, dtypes and host values, so nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.core.errors import OperandError, SegmentError, ShapeError
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["check_parts", "check_stream"]


def check_stream(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    slots: SlotTable,
    segments: SegmentTable,
    tables: LaunchTables | RowTables | None,
    row_keys_T: Tensor | None,
) -> None:
    """Check the stream against its frozen linear and its tables.

    Raises:
        ShapeError: ``x`` is not [T, K], or there is not one dropout key a row.
        SegmentError: segments, slots or tables describe another stream.
        OperandError: ``frozen`` is no frozen product or has another dtype, or the keys are not int64.
    """
    if not hasattr(frozen, "grad_input"):
        raise OperandError(
            f"frozen is a {type(frozen).__name__}, not a FrozenProduct; wrap its weight [N, K]: "
            "cohort.models.weight_formats.kinds.plain.FrozenLinear(weight, bias)"
        )
    if x_TK.dim() != 2:
        raise ShapeError(f"x must be [T, K], all rows one below the other; found {tuple(x_TK.shape)}: reshape it")
    num_rows, width = x_TK.shape
    if width != frozen.in_features:
        raise ShapeError(f"x is {width} wide but the frozen linear takes {frozen.in_features}")
    if frozen.dtype != x_TK.dtype:
        raise OperandError(f"x is {x_TK.dtype} but the frozen linear {frozen.dtype}; cast one of them")
    if segments.num_rows != num_rows:
        raise SegmentError(
            f"segments cover {segments.num_rows} rows but x has {num_rows}; build the SegmentTable of this stream, "
            f"with num_rows={num_rows}"
        )
    if segments.num_slots != slots.num_slots:
        raise SegmentError(
            f"segments know {segments.num_slots} slots but the slot table {slots.num_slots}; give both every slot, "
            "empty ones included"
        )
    if tables is not None and (tables.num_rows, tables.num_slots) != (num_rows, slots.num_slots):
        raise SegmentError(
            f"tables describe {tables.num_rows} rows and {tables.num_slots} slots, segments {num_rows} and "
            f"{slots.num_slots}; build LaunchTables from these segments and slots"
        )
    if row_keys_T is not None:
        if tuple(row_keys_T.shape) != (num_rows,):
            raise ShapeError(
                f"row_keys_T must have one key for each of {num_rows} rows, found {tuple(row_keys_T.shape)}"
            )
        if row_keys_T.dtype != torch.int64:
            raise OperandError(
                f"row_keys_T must be a torch.int64 tensor (cohort.kernels.dropout.row_keys), found "
                f"{type(row_keys_T).__name__} of {row_keys_T.dtype}"
            )


def check_parts(parts: Sequence[LoraPart], *, x_TK: Tensor, frozen: FrozenProduct, slots: SlotTable) -> None:
    """Check that each part's factors fit the frozen linear, the slots' rank rows and the stream.

    Raises:
        ShapeError: a factor has too few rank rows or another width, or parts are not in the order of their columns.
        OperandError: a factor has another dtype or device than ``x``, its rows are not contiguous, or one sink alone
            is given.
    """
    if isinstance(parts, LoraPart):
        raise OperandError("parts is one LoraPart; give a list, with one part for each sibling")
    # this runs for every linear of every pass: what follows from the part alone is looked at once
    in_features, out_features, least, column = frozen.in_features, frozen.out_features, slots.end_of_rank_rows, 0
    operand = (in_features, x_TK.dtype, x_TK.device)
    for part in parts:
        if operand not in part.suits:
            _check_part(part, in_features=in_features, x_TK=x_TK)
            part.suits.add(operand)
        num_rank_rows, width = part.b_RN.shape
        if num_rank_rows < least:
            raise ShapeError(f"a part's factors have {num_rank_rows} rank rows but the slots end at rank row {least}")
        start, stop = part.column_start, part.column_start + width
        if start < column or stop > out_features:
            raise ShapeError(
                f"a part owns columns {start}:{stop} of a frozen linear with {out_features}, and parts before it end "
                f"at {column}; parts own columns of their own, in order: see column_start"
            )
        column = stop


def _check_part(part: LoraPart, *, in_features: int, x_TK: Tensor) -> None:
    a, b, dtype, device = part.a_RK, part.b_RN, x_TK.dtype, x_TK.device
    a_shape, b_shape = a.shape, b.shape
    if len(a_shape) != 2 or len(b_shape) != 2 or a_shape[0] != b_shape[0] or a_shape[1] != in_features:
        raise ShapeError(
            f"a part has A {tuple(a_shape)} and B {tuple(b_shape)}; A is [R, {in_features}] and B [R, N] with one "
            "R, the rank rows of all slots (PEFT's lora_B [N, r] is transposed: give lora_B.T.contiguous())"
        )
    for name, factor, sink in (("A", a, part.grad_a_RK), ("B", b, part.grad_b_RN)):
        if factor.dtype != dtype or factor.device != device:
            raise OperandError(
                f"{name} is {factor.dtype} on {factor.device} but x {dtype} on {device}; factors have the "
                "stream's dtype and device (their sinks may be float32)"
            )
        _check_rows_of(name, factor)
        if sink is not None:
            _check_rows_of(name + "'s sink", sink)
            if sink.shape != factor.shape:
                raise ShapeError(
                    f"the sink of {name} is {tuple(sink.shape)} but {name} {tuple(factor.shape)}; a sink has its "
                    "factor's shape"
                )
    if (part.grad_a_RK is None) != (part.grad_b_RN is None):
        raise OperandError("a part has a sink for one of its factors; give grad_a_RK and grad_b_RN, or neither")


def _check_rows_of(name: str, matrix: Tensor) -> None:
    if matrix.stride(-1) != 1 and matrix.shape[-1] > 1:
        raise OperandError(
            f"{name} {tuple(matrix.shape)} has strides {matrix.stride()}; the entries of a rank row lie one after the "
            "other (stride 1): call .contiguous() on what was transposed"
        )
