"""Attention that remembers: new positions of many sequences, each of which sees its own stored keys.

Decoding asks for one position, a prompt for tiles of 16 that begin at multiples of 16. A tile's shape depends on its
positions alone, and so do its bits: where a prompt was cut into chunks, how much of it was found in the prefix cache,
and who else is in the pass change nothing.

Shapes:  T rows of the stream · B tiles of a bucket · Q queries of a tile · L rounded key length
         H, G heads · E head width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.paged_attention import PagedTiles, paged_attention
from cohort.kernels.staging import stage_together, to_device_unwaited
from cohort.models.attention import masked_attention
from cohort.models.config import AttentionRule
from cohort.models.tiled_attention import TILE_QUERIES, rounded_key_length, visible_keys
from cohort.serving.kv_blocks import BLOCK_ROWS, NULL_BLOCK, KvBlocks, blocks_for, rows_of

__all__ = ["CachedAttention", "NewPositions"]

assert TILE_QUERIES == BLOCK_ROWS, "a prompt is cut where its blocks begin"


@dataclass(frozen=True, kw_only=True)
class NewPositions:
    """The positions ``start : start + count`` of one sequence, which this pass computes.

    Attributes:
        blocks: The sequence's blocks, enough for all positions up to these.
        is_prompt: Computed in tiles, and ``start`` is a multiple of 16; False: one position, computed alone.
    """

    blocks: Sequence[int]
    start: int
    count: int
    is_prompt: bool


@dataclass
class _Bucket:
    """Tiles of equal shape. ``kept``: which of its queries are no padding, and ``kept_rows`` where they go.

    ``is_whole``: the tiles are all rows of the pass, in order, one query each.
    """

    query_rows: Tensor
    pool_rows: Tensor
    positions_BQ: Tensor
    kept: Tensor
    kept_rows: Tensor
    key_length: int
    is_whole: bool
    masks: dict[AttentionRule, Tensor] = field(default_factory=dict)

    def visible(self, rule: AttentionRule, *, dtype: torch.dtype) -> Tensor:
        """Mask [B, 1, Q, L]: the keys that each query sees; what is added to scores where no cap comes between."""
        if rule not in self.masks:
            self.masks[rule] = visible_keys(self.positions_BQ, key_length=self.key_length, rule=rule, dtype=dtype)
        return self.masks[rule]


class CachedAttention:
    """Satisfies :class:`cohort.models.attention.AttentionContext` over sequences whose earlier keys are stored."""

    def __init__(
        self, cache: KvBlocks, sequences: Sequence[NewPositions], *, device: torch.device, whole_tiles: bool = False
    ) -> None:
        """Take the sequences in stream order.

        Args:
            whole_tiles: Compute a position that is decoded at its place in a tile of 16, on a CPU: it then has the bits
                that :class:`~cohort.models.tiled_attention.TiledAttention` gives it among its neighbours.
        """
        self._whole_tiles = whole_tiles
        self._cache, self._device, self._sequences = cache, device, tuple(sequences)
        self._longest = max(each.start + each.count for each in sequences)
        self._tiles: tuple[PagedTiles, ...] | None = None
        self._buckets: list[_Bucket] | None = None
        (self._rows,) = stage_together([_written_rows(sequences)], device)

    @property
    def num_positions(self) -> int:
        return self._longest

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        """Return o [T, H, E]; zeros in the rows of no sequence."""
        count = len(self._rows)
        self._cache.write(layer_index, rows=self._rows, k_TGE=k_TGE[:count], v_TGE=v_TGE[:count])
        if rule.suits_kernels and choose_backend(q_THE) is Backend.TRITON:
            o_THE = torch.zeros_like(q_THE)
            if self._tiles is None:
                self._tiles = _paged_tiles(self._sequences, device=self._device)
            keys, values = self._cache.of_layer(layer_index)
            for tiles in self._tiles:
                paged_attention(
                    q_THE,
                    keys,
                    values,
                    tiles=tiles,
                    page_rows=BLOCK_ROWS,
                    window=rule.window,
                    o_THE=o_THE,
                )
            return o_THE
        if self._buckets is None:
            own_rows = [rows_of(each.blocks) for each in self._sequences]
            self._buckets = _buckets(self._sequences, own_rows, device=self._device, whole_tiles=self._whole_tiles)
        # of a bucket that is the whole pass, what it gives
        o_THE = q_THE if self._buckets[0].is_whole else torch.zeros_like(q_THE)
        for bucket in self._buckets:
            shape = bucket.positions_BQ.shape
            q_BQHE = q_THE.index_select(0, bucket.query_rows).unflatten(0, shape)
            keys, values = self._cache.read(layer_index, rows=bucket.pool_rows)
            of_keys = (shape[0], bucket.key_length)
            o_BQHE = masked_attention(
                q_BQHE,
                keys.unflatten(0, of_keys),
                values.unflatten(0, of_keys),
                visible=bucket.visible(rule, dtype=q_THE.dtype),
                rule=rule,
            )
            if bucket.is_whole:
                o_BHE, filler = o_BQHE.flatten(0, 1), len(q_THE) - shape[0]
                return F.pad(o_BHE, (0, 0, 0, 0, 0, filler)) if filler else o_BHE.contiguous()
            o_THE.index_copy_(0, bucket.kept_rows, o_BQHE.flatten(0, 1).index_select(0, bucket.kept))
        return o_THE


def _written_rows(sequences: Sequence[NewPositions]) -> NDArray[np.int64]:
    """Return the rows of the pool of all new positions, in stream order."""
    if all(each.count == 1 for each in sequences):
        # hundreds of sequences that decode: one row of one block each
        blocks = np.array([each.blocks[each.start // BLOCK_ROWS] for each in sequences], dtype=np.int64)
        places = np.array([each.start for each in sequences], dtype=np.int64) % BLOCK_ROWS
        return blocks * BLOCK_ROWS + places
    return np.concatenate([rows_of(each.blocks)[each.start : each.start + each.count] for each in sequences])


def _paged_tiles(sequences: Sequence[NewPositions], *, device: torch.device) -> tuple[PagedTiles, ...]:
    """Return the tiles of prompts and those of decoding, without either where there are none."""
    tables = np.zeros((len(sequences), max(len(each.blocks) for each in sequences)), dtype=np.int32)
    entries: dict[int, list[tuple[int, int, int, int]]] = {}
    row = 0
    for index, each in enumerate(sequences):
        tables[index, : len(each.blocks)] = each.blocks
        size = TILE_QUERIES if each.is_prompt else 1
        stop = each.start + each.count
        for start in range(each.start, stop, size):
            count = min(size, stop - start)
            entries.setdefault(size, []).append((row, count, start, index))
            row += count
    on_device = to_device_unwaited(tables, device)
    most = max(each.start + each.count for each in sequences)
    return tuple(
        PagedTiles(
            tiles_N4=to_device_unwaited(np.array(own, dtype=np.int32), device),
            tables_SP=on_device,
            queries=size,
            most_keys=most,
        )
        for size, own in sorted(entries.items())
    )


@dataclass
class _Tile:
    rows: NDArray[np.int64]
    """Stream rows of its queries; the first of its own where it has none."""
    positions: NDArray[np.int64]
    own: NDArray[np.int64]
    """Places of its own queries."""
    pool_rows: NDArray[np.int64]


def _buckets(
    sequences: Sequence[NewPositions],
    own_rows: Sequence[NDArray[np.int64]],
    *,
    device: torch.device,
    whole_tiles: bool = False,
) -> list[_Bucket]:
    by_shape: dict[tuple[int, int], list[_Tile]] = {}
    null_rows = rows_of([NULL_BLOCK])
    row = 0
    for each, pool_rows in zip(sequences, own_rows, strict=True):
        stop = each.start + each.count
        size = TILE_QUERIES if each.is_prompt or whole_tiles else 1
        for start in range(each.start // size * size, stop, size):
            own = np.arange(max(start, each.start), min(start + size, stop)) - start
            # a tile reads to its own end, however few of its queries there are
            key_length = rounded_key_length(start + size, on_cpu=device.type == "cpu")
            missing = blocks_for(key_length) - len(pool_rows) // BLOCK_ROWS
            padded = pool_rows if missing <= 0 else np.concatenate([pool_rows, np.tile(null_rows, missing)])
            rows = np.full(size, row)
            rows[own] += np.arange(len(own))
            positions = start + np.arange(size)
            positions[rows == row] = start + own[0]
            tile = _Tile(rows, positions, own, padded[:key_length])
            by_shape.setdefault((size, key_length), []).append(tile)
            row += len(own)
    return [
        _bucket(tiles, size=size, key_length=key_length, device=device, is_whole=len(by_shape) == size == 1)
        for (size, key_length), tiles in sorted(by_shape.items())
    ]


def _bucket(tiles: Sequence[_Tile], *, size: int, key_length: int, device: torch.device, is_whole: bool) -> _Bucket:
    kept = np.concatenate([index * size + tile.own for index, tile in enumerate(tiles)])
    query_rows = np.concatenate([tile.rows for tile in tiles])
    staged = stage_together(
        [
            query_rows,
            np.concatenate([tile.pool_rows for tile in tiles]),
            np.concatenate([tile.positions for tile in tiles]),
            kept,
            query_rows[kept],
        ],
        device,
    )
    return _Bucket(
        query_rows=staged[0],
        pool_rows=staged[1],
        positions_BQ=staged[2].view(len(tiles), size),
        kept=staged[3],
        kept_rows=staged[4],
        key_length=key_length,
        is_whole=is_whole,
    )
