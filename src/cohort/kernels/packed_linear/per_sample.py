"""The path for CPUs: one frozen product over the stream, adapter products slot by slot or sample by sample.

Bits are the reason for the loops. Where the BLAS gives a row the same bits at any height (:mod:`.term_heights`), a
row's term is computed with the others of its slot, and slots whose samples have the same lengths take one call.
Elsewhere one product takes one sample at its true rank, which has the same shape alone and in any pack. Weight
gradients are sums over rows: always one product a sample, added to the sinks in sample order, so micro-batch splits
change nothing. The frozen product is the only one over all rows; its rows are bit-stable when the stream has at least
32 rows, a multiple of 16.

Shapes:  T rows of the stream · Z rows of one slot · L rows of one sample · K input width · N output width · r true rank
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.kernels.dropout import keep_mask, kept_rows
from cohort.kernels.packed_linear.even_slots import EvenSlots, even_backward, even_forward, even_slots
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.row_runs import add_row_product, row_product
from cohort.kernels.packed_linear.slot_stretches import (
    Stretch,
    add_gradient,
    is_power_of_two,
    stretch_backward,
    stretch_forward,
    stretches,
)
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.packed_linear.term_heights import term_least
from cohort.kernels.segments import SegmentTable, SlotSamples

__all__ = ["Piece", "per_sample_backward", "per_sample_forward", "term_pieces"]


@dataclass(kw_only=True, slots=True)
class _Term:
    """One part's LoRA term in one slot. ``least`` is what :func:`least_height` says: None takes sample by sample."""

    part: LoraPart
    own: SlotSamples
    rank_rows: slice
    scale: float
    dropout: float
    least: int | None

    @property
    def a_rK(self) -> Tensor:
        return self.part.a_RK[self.rank_rows]

    @property
    def b_rN(self) -> Tensor:
        return self.part.b_RN[self.rank_rows]

    def keep(self, row_keys_T: Tensor | None, *, num_features: int) -> Tensor | None:
        """Return the dropout mask [Z, K] of the slot's rows, None where nothing is dropped."""
        if row_keys_T is None or self.dropout == 0.0:
            return None
        return keep_mask(
            row_keys_T[self.own.rows],
            module_key=self.part.module_key,
            num_features=num_features,
            probability=self.dropout,
            first_feature=self.part.first_feature,
        )

    def dropped(self, x_ZK: Tensor, keep_ZK: Tensor | None) -> Tensor:
        return x_ZK if keep_ZK is None else kept_rows(x_ZK, keep_ZK, probability=self.dropout)


@dataclass(kw_only=True, slots=True)
class _Linear:
    """One linear in one pass: what its terms share."""

    parts: Sequence[LoraPart]
    slots: SlotTable
    asks: bool
    in_features: int
    product_width: int
    num_threads: int

    @classmethod
    def of(cls, x_TK: Tensor, *, frozen: FrozenProduct, parts: Sequence[LoraPart], slots: SlotTable) -> _Linear:
        return cls(
            parts=parts,
            slots=slots,
            asks=x_TK.device.type == "cpu" and x_TK.dtype == torch.float32 and x_TK.is_contiguous(),
            in_features=x_TK.shape[1],
            product_width=frozen.out_features,
            num_threads=torch.get_num_threads(),
        )

    def least(self, part: LoraPart, rank: int) -> int | None:
        """Return from how many rows on a row keeps its bits; None takes sample by sample."""
        if not self.asks or rank == 0:
            return None
        n, stride = part.b_RN.shape[1], part.a_RK.stride(0)
        return term_least(self.in_features, n, self.product_width, rank, stride, self.num_threads)

    def pieces(
        self, stretch: Stretch | SlotSamples, segments: SegmentTable
    ) -> Iterator[tuple[LoraPart, EvenSlots | Stretch | _Term]]:
        """Yield the terms of each part: of the whole stretch where its runs are tall enough, of each slot elsewhere."""
        even = None if isinstance(stretch, SlotSamples) else _even(stretch, segments)
        for part in self.parts:
            if isinstance(stretch, SlotSamples):
                yield part, self._term(part, stretch)
                continue
            least = self.least(part, stretch.rank)
            if least is not None and least <= stretch.least_run:
                is_even = even is not None and even.have_own_bits(
                    part, product_width=self.product_width, num_threads=self.num_threads
                )
                yield part, even if even is not None and is_even else stretch
            else:
                for own in stretch.slots:
                    yield part, self._term(part, own)

    def _term(self, part: LoraPart, own: SlotSamples) -> _Term:
        slots, slot = self.slots, own.slot
        return _Term(
            part=part,
            own=own,
            rank_rows=slots.rank_rows(slot),
            scale=slots.scales[slot],
            dropout=slots.dropouts[slot],
            least=self.least(part, slots.ranks[slot]),
        )


def _even(stretch: Stretch, segments: SegmentTable) -> EvenSlots | None:
    key = ("even slots", stretch)
    if key not in segments.derived:
        segments.derived[key] = even_slots(stretch)
    found: EvenSlots | None = segments.derived[key]
    return found


# What is computed at once of one part's terms.
Piece = tuple[LoraPart, EvenSlots | Stretch | _Term]


def term_pieces(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    drops: bool,
) -> list[Piece]:
    """Return the pieces in which both directions of a pass compute a linear's terms, in order."""
    linear = _Linear.of(x_TK, frozen=frozen, parts=parts, slots=slots)
    return [piece for stretch in stretches(segments, slots, drops=drops) for piece in linear.pieces(stretch, segments)]


def per_sample_forward(
    x_TK: Tensor,
    *,
    frozen: FrozenProduct,
    parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None,
    pieces: Sequence[Piece] | None = None,
) -> tuple[Tensor, list[list[Tensor]]]:
    """Return y [T, N] and the kept intermediates S of each piece: [S, r] or [Z, r], or [L, r] of each sample.

    ``pieces``: what :func:`term_pieces` gives for the other arguments; looked up when None.
    """
    y_TN = frozen.forward(x_TK)
    if pieces is None:
        drops = row_keys_T is not None
        pieces = term_pieces(x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments, drops=drops)
    kept: list[list[Tensor]] = []
    # siblings read the same rows of x, which are cut once
    cut: Stretch | EvenSlots | None = None
    x_runs: Sequence[Tensor] = ()
    for part, piece in pieces:
        if isinstance(piece, _Term):
            kept.append(_term_forward(y_TN, x_TK, piece, row_keys_T))
            continue
        if piece is not cut:
            cut, x_runs = piece, piece.by_run(x_TK)
        if isinstance(piece, Stretch):
            kept.append([stretch_forward(y_TN, x_runs=x_runs, part=part, stretch=piece)])
        else:
            kept.append([even_forward(y_TN, x_runs=x_runs, part=part, even=piece)])
    return y_TN, kept


def _term_forward(y_TN: Tensor, x_TK: Tensor, term: _Term, row_keys_T: Tensor | None) -> list[Tensor]:
    x_ZK, y_ZN = x_TK[term.own.rows], y_TN[term.own.rows, term.part.columns]
    x_ZK = term.dropped(x_ZK, term.keep(row_keys_T, num_features=x_TK.shape[1]))
    a_rK, b_rN = term.a_rK, term.b_rN
    if term.least is not None:
        s_Zr = row_product(x_ZK, a_rK.t(), least=term.least)
        if is_power_of_two(term.scale):
            add_row_product(y_ZN, s_Zr, b_rN, alpha=term.scale, least=term.least)
        else:
            y_ZN.add_(row_product(s_Zr, b_rN, least=term.least), alpha=term.scale)
        return [s_Zr]
    intermediates = []
    for x_LK, y_LN in zip(_by_sample(x_ZK, term), _by_sample(y_ZN, term), strict=True):
        s_Lr = _aligned(x_LK) @ a_rK.t()
        y_LN.add_(s_Lr @ b_rN, alpha=term.scale)
        intermediates.append(s_Lr)
    return intermediates


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
    with_dx: bool = True,
    pieces: Sequence[Piece] | None = None,
) -> Tensor | None:
    """Return dx [T, K], if it is wanted, and add every sample's dA and dB to the parts' sinks, in sample order.

    ``pieces``: those of the forward pass; looked up when None.
    """
    dy_TN = dy_TN.contiguous()
    dx_TK = frozen.grad_input(dy_TN) if with_dx else None
    if pieces is None:
        drops = row_keys_T is not None
        pieces = term_pieces(x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments, drops=drops)
    cut: Stretch | EvenSlots | None = None
    x_samples: Sequence[Tensor] = ()
    dx_runs: Sequence[Tensor] | None = None
    for (part, piece), intermediates in zip(pieces, kept, strict=True):
        if isinstance(piece, _Term):
            _term_backward(dy_TN, dx_TK, x_TK=x_TK, intermediates=intermediates, term=piece, row_keys_T=row_keys_T)
            continue
        if piece is not cut:
            cut, x_samples = piece, piece.by_sample(x_TK)
            dx_runs = None if dx_TK is None else piece.by_run(dx_TK)
        (s_Sr,) = intermediates
        if isinstance(piece, Stretch):
            stretch_backward(dy_TN, s_Sr=s_Sr, x_samples=x_samples, dx_runs=dx_runs, part=part, stretch=piece)
        else:
            even_backward(dy_TN, s_Sr=s_Sr, x_samples=x_samples, dx_runs=dx_runs, part=part, even=piece)
    return dx_TK


def _term_backward(
    dy_TN: Tensor,
    dx_TK: Tensor | None,
    *,
    x_TK: Tensor,
    intermediates: Sequence[Tensor],
    term: _Term,
    row_keys_T: Tensor | None,
) -> None:
    rows = term.own.rows
    dy_ZN, dx_ZK = dy_TN[rows, term.part.columns], None if dx_TK is None else dx_TK[rows]
    keep_ZK = term.keep(row_keys_T, num_features=x_TK.shape[1])
    x_samples = _by_sample(term.dropped(x_TK[rows], keep_ZK), term)
    if term.least is not None:
        _whole_slot_backward(dy_ZN, dx_ZK, s_Zr=intermediates[0], x_samples=x_samples, term=term, keep_ZK=keep_ZK)
    else:
        _samples_backward(dy_ZN, dx_ZK, s_samples=intermediates, x_samples=x_samples, term=term, keep_ZK=keep_ZK)


def _whole_slot_backward(
    dy_ZN: Tensor,
    dx_ZK: Tensor | None,
    *,
    s_Zr: Tensor,
    x_samples: Sequence[Tensor],
    term: _Term,
    keep_ZK: Tensor | None,
) -> None:
    least, a_rK, alpha = term.least, term.a_rK, term.scale
    assert least is not None, "rows of other heights have other bits"
    if not is_power_of_two(alpha):
        dy_ZN, alpha = dy_ZN * alpha, 1.0
    ds_Zr = row_product(dy_ZN, term.b_rN.t(), least=least)
    sink_a, sink_b = _sinks(term)
    s_of_samples, ds_of_samples = (rows_Zr.t().split_with_sizes(term.own.lengths, 1) for rows_Zr in (s_Zr, ds_Zr))
    dy_samples = _by_sample(dy_ZN, term)
    for s_rL, dy_LN, ds_rL, x_LK in zip(s_of_samples, dy_samples, ds_of_samples, x_samples, strict=True):
        add_gradient(sink_b, s_rL, dy_LN, alpha=alpha)
        add_gradient(sink_a, ds_rL, x_LK, alpha=alpha)
    if dx_ZK is None:
        return
    if keep_ZK is None:
        add_row_product(dx_ZK, ds_Zr, a_rK, alpha=alpha, least=least)
    else:
        dx_ZK.add_(term.dropped(row_product(ds_Zr, a_rK, least=least), keep_ZK), alpha=alpha)


def _samples_backward(
    dy_ZN: Tensor,
    dx_ZK: Tensor | None,
    *,
    s_samples: Sequence[Tensor],
    x_samples: Sequence[Tensor],
    term: _Term,
    keep_ZK: Tensor | None,
) -> None:
    a_rK, b_rN = term.a_rK, term.b_rN
    sink_a, sink_b = _sinks(term)
    keeps = [None] * len(s_samples) if keep_ZK is None else _by_sample(keep_ZK, term)
    dy_samples = _by_sample(dy_ZN, term)
    dx_samples = [None] * len(s_samples) if dx_ZK is None else _by_sample(dx_ZK, term)
    for s_Lr, dy_LN, x_LK, dx_LK, keep_LK in zip(s_samples, dy_samples, x_samples, dx_samples, keeps, strict=True):
        scaled_LN = dy_LN * term.scale
        ds_Lr = scaled_LN @ b_rN.t()
        sink_b.add_(s_Lr.t() @ scaled_LN)
        sink_a.add_(ds_Lr.t() @ _aligned(x_LK))
        if dx_LK is not None:
            dx_LK.add_(term.dropped(ds_Lr @ a_rK, keep_LK))


def _by_sample(rows_ZX: Tensor, term: _Term) -> Sequence[Tensor]:
    return rows_ZX.split_with_sizes(term.own.lengths)


def _sinks(term: _Term) -> tuple[Tensor, Tensor]:
    grad_a_RK, grad_b_RN = term.part.grad_a_RK, term.part.grad_b_RN
    assert grad_a_RK is not None, "backward needs sinks"
    assert grad_b_RN is not None, "backward needs sinks"
    return grad_a_RK[term.rank_rows], grad_b_RN[term.rank_rows]


def _aligned(x_LK: Tensor) -> Tensor:
    # where rows are no multiple of 16 bytes a first row is aligned by chance, and the product's bits follow
    return x_LK if x_LK.shape[1] * x_LK.element_size() % 16 == 0 else x_LK.clone()
