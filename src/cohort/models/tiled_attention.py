"""Attention of whole sequences in the tiles that decoding computes: a row has the bits that it had when it was drawn.

A tile is 16 queries that begin at a multiple of 16, and reads keys up to its own end, rounded up. Its shape depends on
its positions alone, and an entry of a product on the shape and its own rows; so a query that decoding computes in a
tile by itself, its place in the tile kept, gets the bits that it gets here among the others.

Shapes:  T rows of the stream · L rows of a sequence, P padded to whole tiles · Q queries of a tile
         H query heads · G key-value heads · E head width
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.packed_linear import PaddedRows
from cohort.models.attention import PackedAttention, masked_attention
from cohort.models.config import AttentionRule

__all__ = ["TILE_QUERIES", "TiledAttention", "rounded_key_length", "visible_keys"]

TILE_QUERIES = 16
# Keys are read up to a tile's own end, rounded up: fewer buckets on a GPU, less wasted work on a CPU.
CPU_KEY_MULTIPLE = 32
GPU_KEY_MULTIPLE = 256
# from here on a CPU rounds more coarsely as well
LONG_KEYS = 512
LONG_KEY_MULTIPLE = 128


def rounded_key_length(length: int, *, on_cpu: bool) -> int:
    """Return how many keys are read for a tile that ends at ``length``."""
    multiple = GPU_KEY_MULTIPLE if not on_cpu else CPU_KEY_MULTIPLE if length <= LONG_KEYS else LONG_KEY_MULTIPLE
    return -(-length // multiple) * multiple


def visible_keys(positions_BQ: Tensor, *, key_length: int, rule: AttentionRule, dtype: torch.dtype) -> Tensor:
    """Return the mask [B, 1, Q, L] of the keys that queries see; what is added to scores where no cap comes between."""
    keys = torch.arange(key_length, device=positions_BQ.device)
    mask = keys <= positions_BQ[..., None]
    if rule.window is not None:
        mask &= keys > positions_BQ[..., None] - rule.window
    if rule.cap is None:
        # torch makes this of a mask of bools, once in each layer
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask[:, None]


class TiledAttention(PackedAttention):
    """Attends as decoding does, for training passes on a CPU; with gradients."""

    def __init__(self, sequence_offsets: tuple[int, ...]) -> None:
        super().__init__(sequence_offsets)
        self._masks: dict[tuple[int, AttentionRule], Tensor] = {}

    def attend(
        self,
        layer_index: int,
        q_THE: Tensor,
        k_TGE: Tensor,
        v_TGE: Tensor,
        *,
        rule: AttentionRule,
        room: PaddedRows | None = None,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        del layer_index
        assert room is None, "only Triton's kernels write into the next linear's room"
        assert sinks_H is None, "bridged models have attention of their own"
        pieces = [
            self._of_sequence(q_THE[start:stop], k_TGE[start:stop], v_TGE[start:stop], rule)
            for start, stop in pairwise(self.sequence_offsets)
            if stop > start
        ]
        pieces.append(q_THE.new_zeros(len(q_THE) - self.sequence_offsets[-1], *q_THE.shape[1:]))
        return torch.cat(pieces)

    def _of_sequence(self, q_LHE: Tensor, k_LGE: Tensor, v_LGE: Tensor, rule: AttentionRule) -> Tensor:
        length = len(q_LHE)
        num_padded = rounded_key_length(-(-length // TILE_QUERIES) * TILE_QUERIES, on_cpu=True)
        q_1PHE, k_1PGE, v_1PGE = (
            F.pad(rows, (0, 0, 0, 0, 0, num_padded - length))[None] for rows in (q_LHE, k_LGE, v_LGE)
        )
        tiles = []
        for start in range(0, length, TILE_QUERIES):
            stop = start + TILE_QUERIES
            key_length = rounded_key_length(stop, on_cpu=True)
            visible = self._visible(start, rule, like=q_LHE)
            tiles.append(
                masked_attention(
                    q_1PHE[:, start:stop], k_1PGE[:, :key_length], v_1PGE[:, :key_length], visible=visible, rule=rule
                )
            )
        return torch.cat(tiles, dim=1)[0, :length]

    def _visible(self, start: int, rule: AttentionRule, *, like: Tensor) -> Tensor:
        if (start, rule) not in self._masks:
            positions_1Q = torch.arange(start, start + TILE_QUERIES, device=like.device)[None]
            key_length = rounded_key_length(start + TILE_QUERIES, on_cpu=True)
            self._masks[start, rule] = visible_keys(positions_1Q, key_length=key_length, rule=rule, dtype=like.dtype)
        return self._masks[start, rule]
