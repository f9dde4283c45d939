"""Which rows are whose: pairs of a token and an expert, sorted on the device. Nothing is read back from it.

Shapes:  T rows of the stream · J experts of a token · S pairs of both, sorted · E experts · Z slots with rows, and none
         G groups, E * Z
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cohort.kernels.staging import to_device_unwaited

__all__ = ["AdapterGroups", "ExpertRows"]

# rows of a tile: about what a group of one expert and one of many slots has
TILE_ROWS = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterGroups:
    """The groups of an expert and a slot, those of rows without an adapter among them, as each expert's last.

    Attributes:
        ends_G: The sorted row after the last of each group (int32).
        slots_Z2: First rank row and rank of each slot (int32); rank 0 for none.
        scales_Z: What each slot's term is multiplied by.
        fresh_Z: Whether each slot's gradients are written over what their sinks hold (int32).
        max_rank: The largest rank.
        tiles_N2: For each tile of at most ``TILE_ROWS`` rows of one group its group and first row (int32); a group of G
            is a tile of none.
    """

    ends_G: Tensor
    slots_Z2: Tensor
    scales_Z: Tensor
    fresh_Z: Tensor
    max_rank: int
    tiles_N2: Tensor

    @property
    def num_slots(self) -> int:
        """Slots and none."""
        return len(self.scales_Z)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertRows:
    """Pairs sorted by expert, within an expert by slot and token.

    Attributes:
        token_S: The token of each sorted pair.
        place_TJ: Where each pair is among the sorted ones; pairs without an expert are behind all others.
        key_S: Expert and slot of each sorted pair: ``expert * slots + slot``, where none is the last slot.
        num_slots: Slots and none.
        ends_E: The sorted row after the last of each expert (int32); the last one ends what is computed.
        adapters: Its groups where an adapter takes part.
    """

    token_S: Tensor
    place_TJ: Tensor
    key_S: Tensor
    num_slots: int
    ends_E: Tensor
    adapters: AdapterGroups | None

    @property
    def expert_S(self) -> Tensor:
        """The expert of each sorted pair, E for none (int64)."""
        return self.key_S.long() // self.num_slots

    @classmethod
    def of(
        cls,
        index_TJ: Tensor,
        *,
        num_experts: int,
        stops: Sequence[int] = (),
        rank_rows: Sequence[slice] = (),
        scales: Sequence[float] = (),
        fresh: Sequence[bool] = (),
    ) -> ExpertRows:
        """Sort the pairs of a stream.

        Args:
            index_TJ: The experts of each token; numbers from E on name none.
            stops: The row behind each slot's last one; slots stand one behind the other from row 0 on.
            rank_rows, scales, fresh: What the adapters' terms need of each of them.
        """
        device, (num_tokens, each) = index_TJ.device, index_TJ.shape
        num_slots = len(stops) + 1
        sent = _Sent.of(stops, rank_rows, scales, fresh, device=device) if stops else None
        # a sort passes over its keys once for each of their bytes
        narrow = torch.int16 if (num_experts + 1) * num_slots < 1 << 15 else torch.int32
        key_TJ = index_TJ.clamp_max(num_experts).to(narrow)
        if sent is not None:
            tokens_T = torch.arange(num_tokens, dtype=torch.int32, device=device)
            slot_T = torch.bucketize(tokens_T, sent.stops, right=True, out_int32=True)
            key_TJ = torch.add(slot_T[:, None], key_TJ, alpha=num_slots).to(narrow)
        key_S, order_S = torch.sort(key_TJ.reshape(-1), stable=True)
        numbers_G = torch.arange(num_experts * num_slots, dtype=narrow, device=device)
        ends_G = torch.searchsorted(key_S, numbers_G, right=True, out_int32=True)
        place_S = torch.empty_like(order_S).scatter_(0, order_S, torch.arange(len(order_S), device=device))
        adapters = None
        if sent is not None:
            adapters = AdapterGroups(
                ends_G=ends_G,
                slots_Z2=sent.slots_Z2,
                scales_Z=sent.scales_Z,
                fresh_Z=sent.fresh_Z,
                max_rank=max(rows.stop - rows.start for rows in rank_rows),
                tiles_N2=_tiles(ends_G, num_slots=num_slots, num_pairs=num_tokens * each),
            )
        return cls(
            token_S=order_S // each,
            place_TJ=place_S.view(num_tokens, each),
            key_S=key_S,
            num_slots=num_slots,
            ends_E=ends_G[num_slots - 1 :: num_slots].contiguous(),
            adapters=adapters,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sent:
    """What the host knows of the slots, sent to the device in one copy that nothing waits for."""

    stops: Tensor
    slots_Z2: Tensor
    scales_Z: Tensor
    fresh_Z: Tensor

    @classmethod
    def of(
        cls,
        stops: Sequence[int],
        rank_rows: Sequence[slice],
        scales: Sequence[float],
        fresh: Sequence[bool],
        *,
        device: torch.device,
    ) -> _Sent:
        count = len(stops) + 1
        table = np.zeros((count, 5), dtype=np.int32)
        table[:-1, 0] = stops
        table[:-1, 1] = [rows.start for rows in rank_rows]
        table[:-1, 2] = [rows.stop - rows.start for rows in rank_rows]
        table[:-1, 3] = fresh
        table[:-1, 4] = np.array(scales, dtype=np.float32).view(np.int32)
        flat = np.concatenate([table[:, 0], table[:, 1:3].reshape(-1), table[:, 3], table[:, 4]])
        parts = to_device_unwaited(flat, device).split([count, 2 * count, count, count])
        return cls(
            stops=parts[0][:-1],
            slots_Z2=parts[1].view(count, 2),
            fresh_Z=parts[2],
            scales_Z=parts[3].view(torch.float32),
        )


def _tiles(ends_G: Tensor, *, num_slots: int, num_pairs: int) -> Tensor:
    """Return the table of tiles [N, 2]; there is room for as many as any routing needs."""
    num_groups = len(ends_G)
    begins_G = torch.cat([ends_G.new_zeros(1), ends_G[:-1]])
    counts_G = (ends_G - begins_G + TILE_ROWS - 1) // TILE_ROWS
    # rows without an adapter have no term
    counts_G = counts_G.masked_fill(torch.arange(num_groups, device=ends_G.device) % num_slots == num_slots - 1, 0)
    tile_ends_G = counts_G.cumsum(0)
    most = num_pairs // TILE_ROWS + min(num_pairs, num_groups - num_groups // num_slots)
    tile_N = torch.arange(most, device=ends_G.device)
    group_N = torch.searchsorted(tile_ends_G, tile_N, right=True)
    own_N = group_N.clamp_max(num_groups - 1)
    first_N = begins_G[own_N] + (tile_N - (tile_ends_G - counts_G)[own_N]) * TILE_ROWS
    return torch.stack([group_N, first_N], dim=1).to(torch.int32)
