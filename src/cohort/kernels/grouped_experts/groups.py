"""Which rows are whose: pairs of a token and an expert, sorted on the device. Nothing is read back from it.

Within an expert pairs stand by span: a slot's rows are one span or, where gradients must be sums over samples in their
order, one span for each sample.

Shapes:  T rows of the stream · J experts of a token · S pairs of both, sorted · E experts · Z slots, and none
         G groups, E * Z · F spans of all experts
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cohort.kernels.packed_linear.launch.slot_columns import SLOT_COLUMNS

__all__ = ["AdapterGroups", "ExpertRows", "SlotRows"]

# rows of a tile: about what a group of one expert and one of many slots has
TILE_ROWS = 32
# the same of an expert alone
PRODUCT_ROWS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterGroups:
    """The groups of an expert and a slot, those of rows without an adapter among them, as each expert's last.

    Attributes:
        ends_G: The sorted row after the last of each group (int32).
        slots_Z2: First rank row and rank of each slot (int32); rank 0 for none.
        scales_Z: What each slot's term is multiplied by.
        fresh_Z: Whether each slot's gradients are written over what their sinks hold (int32).
        max_rank: The largest rank.
        span_ends_F: The sorted row after the last of each span (int32).
        first_spans_Y: The first span of each slot, of an expert's; and how many an expert has, behind them (int32).
        exact: Whether what a row and a sample get must not depend on other ranks of the pass.
        tiles_N2: For each tile of at most ``TILE_ROWS`` rows of one group its group and first row (int32); a group of G
            is a tile of none.
    """

    ends_G: Tensor
    slots_Z2: Tensor
    scales_Z: Tensor
    fresh_Z: Tensor
    max_rank: int
    span_ends_F: Tensor
    first_spans_Y: Tensor
    exact: bool
    tiles_N2: Tensor

    @property
    def num_slots(self) -> int:
        """Slots and none."""
        return len(self.scales_Z)


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotRows:
    """Which span each row of a stream is of, and what the adapters' terms need of each slot; none is the last slot.

    All of it is on the device, so a recorded pass reads the slots of the pass that it is replayed for.

    Attributes:
        span_T: The span of each row (int32); none is the last one.
        num_spans: How many there are.
        first_spans_Y, slots_Z2, scales_Z, fresh_Z, max_rank, exact: As of :class:`AdapterGroups`.
    """

    span_T: Tensor
    num_spans: int
    first_spans_Y: Tensor
    slots_Z2: Tensor
    scales_Z: Tensor
    fresh_Z: Tensor
    max_rank: int
    exact: bool = False

    @property
    def num_slots(self) -> int:
        """Slots and none."""
        return len(self.scales_Z)

    @classmethod
    def of_columns(
        cls, columns: Tensor, *, num_slots: int, num_rows: int, max_rank: int, exact: bool = False
    ) -> SlotRows:
        """Find the span of each row by the rows behind the spans' last ones.

        Args:
            columns: As :func:`slot_columns` lays them out, on the device.
            num_slots: Of the bank.
            exact: Whether spans are samples.
        """
        count = num_slots + 1
        num_stops = len(columns) - SLOT_COLUMNS * count - (count + 1)
        stops, first_spans, slots, fresh, scales = columns.split([num_stops, count + 1, 2 * count, count, count])
        rows_T = torch.arange(num_rows, dtype=torch.int32, device=columns.device)
        return cls(
            span_T=torch.bucketize(rows_T, stops, right=True, out_int32=True),
            num_spans=num_stops + 1,
            first_spans_Y=first_spans,
            slots_Z2=slots.view(count, 2),
            scales_Z=scales.view(torch.float32),
            fresh_Z=fresh,
            max_rank=max_rank,
            exact=exact,
        )

    @classmethod
    def of_rows(cls, rows_T4: Tensor, *, num_slots: int, max_rank: int) -> SlotRows:
        """Take the slot of each row from a table of rows, for passes without gradients.

        Args:
            rows_T4: As :class:`~cohort.kernels.packed_linear.rows.tables.RowTables` has them.
            num_slots: Of the bank.
        """
        # 0 names none, which is the last slot here
        slot_T = torch.remainder(rows_T4[:, 3] - 1, num_slots + 1)
        place_T = slot_T.long()
        # rows of a slot say the same of it
        slots_Z2 = rows_T4.new_zeros(num_slots + 1, 2).index_copy_(0, place_T, rows_T4[:, :2])
        scales_Z = rows_T4.new_zeros(num_slots + 1).index_copy_(0, place_T, rows_T4[:, 2]).view(torch.float32)
        fresh_Z = torch.zeros_like(slots_Z2[:, 0])
        return cls(
            span_T=slot_T,
            num_spans=num_slots + 1,
            first_spans_Y=torch.arange(num_slots + 2, dtype=torch.int32, device=rows_T4.device),
            slots_Z2=slots_Z2,
            scales_Z=scales_Z,
            fresh_Z=fresh_Z,
            max_rank=max_rank,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertRows:
    """Pairs sorted by expert, within an expert by span and token.

    Attributes:
        token_S: The token of each sorted pair.
        place_TJ: Where each pair is among the sorted ones; pairs without an expert are behind all others.
        key_S: Expert and span of each sorted pair: ``expert * spans + span``, where none is the last span.
        num_spans: Of an expert.
        ends_E: The sorted row after the last of each expert (int32); the last one ends what is computed.
        adapters: Its groups where an adapter takes part.
    """

    token_S: Tensor
    place_TJ: Tensor
    key_S: Tensor
    num_spans: int
    ends_E: Tensor
    adapters: AdapterGroups | None

    @property
    def expert_S(self) -> Tensor:
        """The expert of each sorted pair, E for none (int64)."""
        return self.key_S.long() // self.num_spans

    @cached_property
    def product_tiles_N2(self) -> Tensor:
        """For each tile of at most ``PRODUCT_ROWS`` rows of one expert its number and first row (int32); E: of none."""
        return _tiles(self.ends_E, tile_rows=PRODUCT_ROWS, num_pairs=len(self.token_S))

    @classmethod
    def of(cls, index_TJ: Tensor, *, num_experts: int, slots: SlotRows | None = None) -> ExpertRows:
        """Sort the pairs of a stream. Shapes follow from its size alone, and the host reads nothing back.

        Args:
            index_TJ: The experts of each token; numbers from E on name none.
            slots: Those of the stream's rows; None where no adapter takes part.
        """
        device, (num_tokens, each) = index_TJ.device, index_TJ.shape
        num_spans = 1 if slots is None else slots.num_spans
        # a sort passes over its keys once for each of their bytes
        narrow = torch.int16 if (num_experts + 1) * num_spans < 1 << 15 else torch.int32
        key_TJ = index_TJ.clamp_max(num_experts).to(narrow)
        if slots is not None:
            key_TJ = torch.add(slots.span_T[:, None], key_TJ, alpha=num_spans).to(narrow)
        key_S, order_S = torch.sort(key_TJ.reshape(-1), stable=True)
        numbers_F = torch.arange(num_experts * num_spans, dtype=narrow, device=device)
        ends_F = torch.searchsorted(key_S, numbers_F, right=True, out_int32=True)
        place_S = torch.empty_like(order_S).scatter_(0, order_S, torch.arange(len(order_S), device=device))
        return cls(
            token_S=order_S // each,
            place_TJ=place_S.view(num_tokens, each),
            key_S=key_S,
            num_spans=num_spans,
            ends_E=ends_F[num_spans - 1 :: num_spans].contiguous(),
            adapters=None if slots is None else _adapter_groups(ends_F, slots, num_pairs=num_tokens * each),
        )


def _adapter_groups(ends_F: Tensor, slots: SlotRows, *, num_pairs: int) -> AdapterGroups:
    num_slots, ends_G = slots.num_slots, ends_F
    if slots.num_spans != num_slots or slots.exact:
        # a slot ends where the next one's first span begins
        starts = torch.arange(0, len(ends_F), slots.num_spans, device=ends_F.device)
        places_EZ = starts[:, None] + slots.first_spans_Y[None, 1:]
        ends_G = torch.cat([ends_F.new_zeros(1), ends_F])[places_EZ.reshape(-1)]
    # rows without an adapter have no term
    is_none_G = torch.arange(len(ends_G), device=ends_F.device) % num_slots == num_slots - 1
    return AdapterGroups(
        ends_G=ends_G,
        slots_Z2=slots.slots_Z2,
        scales_Z=slots.scales_Z,
        fresh_Z=slots.fresh_Z,
        max_rank=slots.max_rank,
        span_ends_F=ends_F,
        first_spans_Y=slots.first_spans_Y,
        exact=slots.exact,
        tiles_N2=_tiles(ends_G, tile_rows=TILE_ROWS, num_pairs=num_pairs, left_out_G=is_none_G),
    )


def _tiles(ends_G: Tensor, *, tile_rows: int, num_pairs: int, left_out_G: Tensor | None = None) -> Tensor:
    """Return the table of tiles [N, 2]; there is room for as many as any routing needs.

    Args:
        left_out_G: Groups that have none.
    """
    num_groups = len(ends_G)
    begins_G = torch.cat([ends_G.new_zeros(1), ends_G[:-1]])
    counts_G = (ends_G - begins_G + tile_rows - 1) // tile_rows
    if left_out_G is not None:
        counts_G = counts_G.masked_fill(left_out_G, 0)
    tile_ends_G = counts_G.cumsum(0)
    most = num_pairs // tile_rows + min(num_pairs, num_groups)
    tile_N = torch.arange(most, device=ends_G.device)
    group_N = torch.searchsorted(tile_ends_G, tile_N, right=True)
    own_N = group_N.clamp_max(num_groups - 1)
    first_N = begins_G[own_N] + (tile_N - (tile_ends_G - counts_G)[own_N]) * tile_rows
    return torch.stack([group_N, first_N], dim=1).to(torch.int32)
