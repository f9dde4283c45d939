"""The linear that a decoder calls: one frozen product, one or several named adapted parts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from cohort.adapters.modules_to_save.saved_tables import SavedTables
from cohort.adapters.variants.dora import Magnitudes, MagnitudeSlot
from cohort.core.errors import ShapeError
from cohort.kernels.deferred_lora_term import Apart
from cohort.kernels.fp8_product import Fp8Rows
from cohort.kernels.packed_linear import (
    FrozenProduct,
    LaunchTables,
    LoraPart,
    PaddedRows,
    SlotTable,
    input_room,
    packed_linear,
    product_and_term,
)
from cohort.kernels.packed_linear.frozen_product import can_take_codes
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.segments import SegmentTable

__all__ = ["LinearPart", "LoraContext", "PackedLinear"]


@dataclass(frozen=True, kw_only=True)
class LinearPart:
    """A named linear within a fused frozen product.

    Attributes:
        name: Full module path as PEFT writes it, such as ``model.layers.3.self_attn.q_proj``.
        out_features: Its output width N.
    """

    name: str
    out_features: int


@dataclass(frozen=True, kw_only=True)
class LoraContext:
    """Everything the linears of one pass need to know about the pack. Passed explicitly, never kept as module state.

    Attributes:
        factors: Stacked factors by full module path; linears that are not in it run frozen.
        slots: Ranks, scales and dropout of the bank's slots.
        segments: Rows of each slot and sample of the stream.
        row_keys_T: Dropout keys of the stream's rows; None where nothing is dropped.
        tables: Device tables of the same layout for the grouped GPU kernels, built once per step; None: on demand.
        magnitudes: Those of DoRA adapters; None where no slot has any.
        magnitude_slots: The slots that have some.
        saved: Embeddings and heads of slots that have their own.
    """

    factors: Mapping[str, LoraPart]
    slots: SlotTable
    segments: SegmentTable
    row_keys_T: Tensor | None = None
    tables: LaunchTables | RowTables | None = None
    magnitudes: Magnitudes | None = None
    magnitude_slots: tuple[MagnitudeSlot, ...] = ()
    saved: tuple[SavedTables, ...] = ()


class PackedLinear:
    """``y = x W^T (+ bias)`` plus each adapter's term on its own rows, for sibling linears that share ``x``."""

    def __init__(self, frozen: FrozenProduct, *, parts: tuple[LinearPart, ...]) -> None:
        """Wrap ``frozen``, whose output columns are the parts side by side.

        Raises:
            ShapeError: the parts are not as wide together as the frozen product.
        """
        self.frozen = frozen
        self.parts = parts
        starts = [0, *itertools.accumulate(part.out_features for part in parts)]
        if starts[-1] != frozen.out_features:
            raise ShapeError(f"parts are {starts[-1]} wide together, the frozen linear {frozen.out_features}")
        self._column_starts = starts[:-1]
        # by name, the part that a bank has and the same at this linear's columns
        self._placed: dict[str, tuple[LoraPart, LoraPart]] = {}

    def input_room(self, like: Tensor, lora: LoraContext | None) -> PaddedRows | None:
        """Return rows to write the input into where the product will be augmented; None where any input will do.

        ``like`` is any tensor of the pass.
        """
        if lora is None:
            return None
        return input_room(like, frozen=self.frozen, parts=self.adapted(lora), tables=lora.tables)

    def code_room(self, like: Tensor) -> Fp8Rows | None:
        """Return rows to write the codes of the input into where the product multiplies codes; None elsewhere.

        ``like`` is any tensor [T, ...] of the pass.
        """
        return self.frozen.code_room(like) if can_take_codes(self.frozen) else None

    def reading(self, codes: Fp8Rows | None) -> FrozenProduct:
        """Return the frozen product for the one input whose codes these are; the product itself without codes."""
        return self.frozen if codes is None or not can_take_codes(self.frozen) else self.frozen.reading(codes)

    def __call__(
        self,
        x_TK: Tensor,
        lora: LoraContext | None,
        *,
        room: PaddedRows | None = None,
        codes: Fp8Rows | None = None,
    ) -> Tensor:
        """Return y [T, N]; without ``lora``, or a part in it, the frozen product alone.

        Args:
            room: What :meth:`input_room` gave for this pass, with ``x`` in it.
            codes: What :meth:`code_room` gave for this pass, with the codes of ``x`` in it.
        """
        frozen = self.reading(codes)
        if lora is None:
            return packed_linear(x_TK, frozen=frozen, parts=(), slots=_NO_SLOTS, segments=_no_segments(x_TK))
        parts = self.adapted(lora)
        y_TN = packed_linear(
            x_TK,
            frozen=frozen,
            parts=parts,
            slots=lora.slots,
            segments=lora.segments,
            row_keys_T=lora.row_keys_T,
            tables=lora.tables,
            room=room,
        )
        if lora.magnitudes is None:
            return y_TN
        names = (part.name for part in self.parts if part.name in lora.factors)
        return lora.magnitudes.apply(
            y_TN,
            x_TK,
            frozen=self.frozen,
            parts=tuple(zip(names, parts, strict=True)),
            magnitude_slots=lora.magnitude_slots,
            slots=lora.slots,
            segments=lora.segments,
            row_keys_T=lora.row_keys_T,
            exact=isinstance(lora.tables, LaunchTables) and lora.tables.exact,
        )

    def apart(self, x_TK: Tensor, lora: LoraContext | None, *, codes: Fp8Rows | None = None) -> Tensor | Apart:
        """Return y, or where few rows of many adapters are decoded the product and its LoRA terms separately.

        The arguments are those of a call.
        """
        if lora is not None and isinstance(lora.tables, RowTables) and lora.magnitudes is None:
            found = product_and_term(
                x_TK,
                frozen=self.reading(codes),
                parts=self.adapted(lora),
                slots=lora.slots,
                segments=lora.segments,
                tables=lora.tables,
            )
            if found is not None:
                return found
        return self(x_TK, lora, codes=codes)

    def columns_of(self, name: str) -> slice | None:
        """Return the output columns of the part called ``name``; None where it is not one of them."""
        for part, start in zip(self.parts, self._column_starts, strict=True):
            if part.name == name:
                return slice(start, start + part.out_features)
        return None

    def adapted(self, lora: LoraContext) -> tuple[LoraPart, ...]:
        """Return the factors of those parts that ``lora`` adapts, each at its own columns."""
        return tuple(
            self._at_columns(part.name, lora.factors[part.name], start)
            for part, start in zip(self.parts, self._column_starts, strict=True)
            if part.name in lora.factors
        )

    def _at_columns(self, name: str, part: LoraPart, start: int) -> LoraPart:
        if part.column_start == start:
            return part
        # the same object in every pass of a bank: a part keeps views of its factors
        kept = self._placed.get(name)
        if kept is None or kept[0] is not part:
            kept = self._placed[name] = (part, replace(part, column_start=start))
        return kept[1]


_NO_SLOTS = SlotTable(row_starts=(), ranks=(), scales=(), dropouts=())


def _no_segments(x_TK: Tensor) -> SegmentTable:
    return SegmentTable(num_rows=x_TK.shape[0], offsets=(0,), samples=())
