"""DoRA: an adapted weight is a trained magnitude for each output times a direction, ``m (W + s B A) / ||W + s B A||``.

The norm is over the inputs of each output and counts as a constant in the backward pass, as in PEFT. It is never taken
of a full product: ``||W + s BA||^2 = ||W||^2 + 2 s <W, BA> + s^2 ||BA||^2``, row by row, where ``<W, BA>`` needs the
frozen product of A's r rows and ``||BA||^2`` the Gram matrix A A^T [r, r]. So a step costs each adapter r more rows of
each frozen product; with dropout the frozen product of its own rows a second time, because PEFT's magnitude multiplies
the product of dropped inputs.

Shapes:  T rows of the stream · K input width · N output width of one linear · r rank · S slots

Source: DoRA (Liu et al. 2024), section 4; PEFT's DoraLinearLayer. We differ: the norm is float32 where PEFT rounds it
to the weight's dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.variants.magnitude_scaling import AddDropped, ColumnsOf, Multiplied, Piece, Scaled, Scaling
from cohort.kernels.dropout import dropout_rows
from cohort.kernels.packed_linear import FrozenProduct, LaunchTables, LoraPart, SlotTable, packed_linear
from cohort.kernels.packed_linear.dense_rows import dense_rows
from cohort.kernels.segments import SampleSpan, SegmentTable

__all__ = ["MagnitudeSlot", "Magnitudes", "row_norms"]

# A times a power of two, so that a large bias takes no digits of the product that is added to it; exact
_LIFT = 4096.0


@dataclass(frozen=True, kw_only=True)
class MagnitudeSlot:
    """A slot whose adapter has magnitudes.

    Attributes:
        rank_rows: The rank rows of its factors.
        row: The rank row of its magnitudes; they stand in the columns of B.
        modules: Linears that it adapts.
    """

    slot: int
    rank_rows: slice
    row: int
    scale: float
    dropout: float
    modules: frozenset[str]


class Magnitudes:
    """The magnitudes of a bank's adapters, and the norms that belong to the weights as they are now."""

    def __init__(self, layout: AdapterLayout, *, weights_RD: Tensor, grads_RD: Tensor) -> None:
        """Read magnitudes from ``weights`` and add their gradients to ``grads``, both the bank's."""
        self._layout, self._weights_RD, self._grads_RD = layout, weights_RD, grads_RD
        # by linear, of the frozen base: it never changes
        self._base: dict[str, tuple[Tensor, Tensor]] = {}
        self._gains: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        # Gradients through dropped products have sinks of their own, added to the others at the end of a step: then the
        # order of sums does not depend on how the step is cut into micro-batches.
        self._dropped_RD: Tensor | None = None

    def changed(self, slot: int) -> None:
        """Forget the norms of a slot whose weights have changed."""
        for key in [key for key in self._gains if key[0] == slot]:
            del self._gains[key]

    def finish_gradients(self, rank_rows: slice) -> None:
        """Add the gradients of dropped products in these rows to the others."""
        if self._dropped_RD is not None:
            self._grads_RD[rank_rows] += self._dropped_RD[rank_rows]
        self.clear_gradients(rank_rows)

    def clear_gradients(self, rank_rows: slice) -> None:
        if self._dropped_RD is not None:
            self._dropped_RD[rank_rows].zero_()

    def apply(
        self,
        y_TN: Tensor,
        x_TK: Tensor,
        *,
        frozen: FrozenProduct,
        parts: Sequence[tuple[str, LoraPart]],
        magnitude_slots: Sequence[MagnitudeSlot],
        slots: SlotTable,
        segments: SegmentTable,
        row_keys_T: Tensor | None,
        exact: bool = False,
    ) -> Tensor:
        """Return the packed linear's output y with the magnitudes of each slot that has them; other rows as they are.

        Args:
            y_TN: What :func:`packed_linear` gave for ``x``.
            parts: The adapted siblings with their names, as they were given to it.
            row_keys_T: Dropout keys; None where nothing is dropped.
            exact: Give a slot the bits that it has alone, on a GPU, too: its gradients are summed sample by sample.
        """
        by_slot = {own.slot: own for own in magnitude_slots}
        # where bits may follow from the pass, a GPU has fewer, larger operations slot by slot
        is_free = self._is_free(exact=exact)
        segments = segments.by_slot() if is_free else segments
        spans = [span for span in segments.samples if span.slot in by_slot and span.stop > span.start]
        if not spans:
            return y_TN
        owns = [by_slot[slot] for slot in sorted({span.slot for span in spans})]
        self._take_norms(frozen, parts, owns, together=is_free)
        dropped = [span for span in spans if row_keys_T is not None and by_slot[span.slot].dropout > 0]
        plain = [span for span in spans if span not in dropped]
        pieces = [
            Piece(
                rows=slice(s.start, s.stop),
                columns=part.columns,
                scaling=scaling,
                source=slice(s.start, s.stop),
                source_columns=part.columns,
            )
            for name, part in parts
            for s in plain
            if (scaling := self._scaling(by_slot[s.slot], name)) is not None
        ]
        if pieces:
            has_plain_weight = ColumnsOf.can_be_had(frozen)
            result: Tensor = (Multiplied if is_free and has_plain_weight else Scaled).apply(y_TN, pieces)
            y_TN = result
        for name, part in parts if dropped else ():
            assert row_keys_T is not None, "only keys drop"
            y_TN = self._add_dropped(y_TN, x_TK, frozen, (name, part), dropped, by_slot, slots, row_keys_T, exact=exact)
        return y_TN

    def _add_dropped(
        self,
        y_TN: Tensor,
        x_TK: Tensor,
        frozen: FrozenProduct,
        named: tuple[str, LoraPart],
        spans: Sequence[SampleSpan],
        by_slot: dict[int, MagnitudeSlot],
        slots: SlotTable,
        row_keys_T: Tensor,
        *,
        exact: bool,
    ) -> Tensor:
        """Add ``(gain - 1) (W + s BA) drop(x)`` on the rows of ``spans``, whose y holds ``W x + s BA drop(x)``."""
        name, part = named
        spans = [span for span in spans if name in by_slot[span.slot].modules]
        if not spans:
            return y_TN
        lengths = [span.stop - span.start for span in spans]
        # a row's bits are its own in a stream of at least 32 rows, a multiple of 16
        num_rows = max(32, -(-sum(lengths) // 16) * 16)
        rows = [
            dropout_rows(
                x_TK[span.start : span.stop],
                row_keys_T[span.start : span.stop],
                module_key=part.module_key,
                probability=by_slot[span.slot].dropout,
            )
            for span in spans
        ]
        rows.append(x_TK.new_zeros(num_rows - sum(lengths), x_TK.shape[1]))
        segments = SegmentTable.from_samples(
            lengths, slots=[span.slot for span in spans], num_slots=slots.num_slots, num_rows=num_rows
        )
        frozen, dropping = self._dropping(frozen, name, part, exact=exact)
        u_TN = packed_linear(
            torch.cat(rows),
            frozen=frozen,
            parts=[dropping],
            slots=slots,
            segments=segments,
            tables=LaunchTables(segments, slots, device=x_TK.device, exact=True) if exact else None,
        )
        starts = [0, *itertools.accumulate(lengths)]
        pieces = [
            Piece(
                rows=slice(span.start, span.stop),
                columns=part.columns,
                scaling=scaling,
                source=slice(start, start + length),
                source_columns=dropping.columns,
            )
            for span, start, length in zip(spans, starts, lengths, strict=False)
            if (scaling := self._scaling(by_slot[span.slot], name)) is not None
        ]
        result: Tensor = AddDropped.apply(y_TN, u_TN, pieces)
        return result

    def _dropping(
        self, frozen: FrozenProduct, name: str, part: LoraPart, *, exact: bool
    ) -> tuple[FrozenProduct, LoraPart]:
        """Return the product and the factors that a part's dropped rows are multiplied by."""
        if self._dropped_RD is None:
            self._dropped_RD = torch.zeros_like(self._grads_RD)
        columns = self._layout.columns[name]
        part = replace(part, grad_a_RK=self._dropped_RD[:, columns.a], grad_b_RN=self._dropped_RD[:, columns.b])
        if self._is_free(exact=exact) and ColumnsOf.can_be_had(frozen):
            # siblings have masks of their own: each needs its own columns alone
            return ColumnsOf(frozen, part.columns), replace(part, column_start=0)
        return frozen, part

    def _is_free(self, *, exact: bool) -> bool:
        """Return whether the bits of a slot may follow from its pass."""
        return not exact and self._weights_RD.device.type != "cpu"

    def _scaling(self, own: MagnitudeSlot, name: str) -> Scaling | None:
        if name not in own.modules:
            return None
        gain_N, norm_N = self._gains[own.slot, name]
        # the bank of a server trains nothing, and has no gradients
        sink_N = self._grads_RD[own.row, self._layout.columns[name].b] if len(self._grads_RD) else gain_N.new_empty(0)
        return Scaling(gain_N=gain_N, norm_N=norm_N, bias_N=self._base[name][0], sink_N=sink_N)

    @torch.no_grad()
    def _take_norms(
        self,
        frozen: FrozenProduct,
        parts: Sequence[tuple[str, LoraPart]],
        owns: Sequence[MagnitudeSlot],
        *,
        together: bool,
    ) -> None:
        """Compute the gains that the weights' last change made stale."""
        stale = [
            (name, part, own)
            for name, part in parts
            for own in owns
            if name in own.modules and (own.slot, name) not in self._gains
        ]
        if not stale:
            return
        for name, part, _ in stale:
            if name not in self._base:
                self._base[name] = self._of_base(frozen, part)
        # on a CPU one by one: a product's bits depend on its number of rows; on a GPU the weight is read once for all
        groups = [[entry] for entry in stale] if self._weights_RD.device.type == "cpu" else [stale]
        for group in groups:
            a_RK = torch.cat([part.a_RK[own.rank_rows] for _, part, own in group])
            products_RN = frozen.forward(a_RK * _LIFT).to(self._weights_RD.dtype)
            counts = [own.rank_rows.stop - own.rank_rows.start for _, _, own in group]
            lifted = [
                product[:, part.columns] for (_, part, _), product in zip(group, products_RN.split(counts), strict=True)
            ]
            if together:
                self._take_together(group, lifted)
                continue
            for (name, part, own), lifted_rN in zip(group, lifted, strict=True):
                self._gains[own.slot, name] = self._gain(name, part, own, lifted_rN)

    def _take_together(self, group: Sequence[tuple[str, LoraPart, MagnitudeSlot]], lifted: Sequence[Tensor]) -> None:
        """Do what :meth:`_gain` does for each, with as many launches for all slots of one rank and scale as for one."""
        dtype, alike = self._weights_RD.dtype, dict[tuple[str, int, float], list[int]]()
        for place, (name, _, own) in enumerate(group):
            alike.setdefault((name, len(lifted[place]), own.scale), []).append(place)
        for (name, _, scale), places in alike.items():
            part, owns = group[places[0]][1], [group[place][2] for place in places]
            bias_N, squares_N = self._base[name]
            a_SrK = torch.stack([part.a_RK[own.rank_rows] for own in owns]).to(dtype)
            b_SrN = torch.stack([part.b_RN[own.rank_rows] for own in owns]).to(dtype)
            inner_SN = (b_SrN * ((torch.stack([lifted[place] for place in places]) - bias_N) / _LIFT)).sum(1)
            # batched, so that a slot that diverged leaves the others alone
            gram_Srr = torch.bmm(a_SrK, a_SrK.transpose(1, 2))
            outer_SN = (torch.bmm(gram_Srr, b_SrN) * b_SrN).sum(1)
            norms_SN = (squares_N + 2 * scale * inner_SN + scale**2 * outer_SN).clamp(min=0).sqrt()
            magnitudes_SN = torch.stack([self._weights_RD[own.row, self._layout.columns[name].b] for own in owns])
            for own, gain_N, norm_N in zip(owns, magnitudes_SN / norms_SN, norms_SN, strict=True):
                self._gains[own.slot, name] = gain_N, norm_N

    def _gain(self, name: str, part: LoraPart, own: MagnitudeSlot, lifted_rN: Tensor) -> tuple[Tensor, Tensor]:
        """Return gain and norm [N] from ``4096 A W^T + bias``."""
        bias_N, squares_N = self._base[name]
        dtype = self._weights_RD.dtype
        a_rK, b_rN = part.a_RK[own.rank_rows].to(dtype), part.b_RN[own.rank_rows].to(dtype)
        inner_N = (b_rN * ((lifted_rN - bias_N) / _LIFT)).sum(0)
        outer_N = ((a_rK @ a_rK.T) @ b_rN * b_rN).sum(0)
        norm_N = (squares_N + 2 * own.scale * inner_N + own.scale**2 * outer_N).clamp(min=0).sqrt()
        return self._weights_RD[own.row, self._layout.columns[name].b] / norm_N, norm_N

    def _of_base(self, frozen: FrozenProduct, part: LoraPart) -> tuple[Tensor, Tensor]:
        """Return the bias and the squared norms of W's rows, [N] each."""
        device, dtype = self._weights_RD.device, self._weights_RD.dtype
        zeros_K = torch.zeros(32, frozen.in_features, dtype=part.a_RK.dtype, device=device)
        bias_N = frozen.forward(zeros_K)[0, part.columns].to(dtype)
        norms_N = row_norms(dense_rows(frozen, part.columns, device=device), dtype=dtype)
        return bias_N, norms_N.square()


def row_norms(weight_NK: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return the norm [N] of each row of a base weight, which DoRA's magnitudes begin with."""
    norms_N: Tensor = torch.linalg.vector_norm(weight_NK.to(dtype), dim=1)
    return norms_N
