"""Decoding as CUDA graphs: one launch of the host for a pass of one row a sequence.

A pass over an 8B model is some 500 launches, and the GPU computes a small batch faster than the host can launch them.
A graph records the launches for a number of rows; tokens, positions, pages and each row's adapter are read from tensors
that are filled before each replay, so that sequences and adapters come and go without another recording.

Shapes:  T rows of a graph · P pages of a sequence at its longest · V vocabulary
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.packed_linear.rows.tables import MOST_ROWS, RowTables
from cohort.kernels.paged_attention import NewPages, PagedTiles, paged_attention
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import pinned
from cohort.models.config import AttentionRule
from cohort.models.decoder import Decoder
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from cohort.serving.sampler import Scores

__all__ = ["DecodeGraphs", "DecodeRow", "keys_of_graph", "rows_of_graph"]

_log = logging.getLogger(__name__)
_SIZES = (16, 32, 48, 64, 96, 128, 160, 192, MOST_ROWS)
# Keys of the longest sequence that a graph has room for, times four from one class to the next: attention launches a
# program for every piece of the keys that there might be, and of a context of 128k nearly all would find nothing.
_FEWEST_KEYS = 1024


@dataclass(frozen=True, kw_only=True)
class DecodeRow:
    """The newest token of one sequence.

    Attributes:
        blocks: The sequence's blocks, its newest position's included.
        slot: Its adapter's; -1 for none.
    """

    token: int
    position: int
    blocks: Sequence[int]
    slot: int


def keys_of_graph(longest: int, *, most: int) -> int:
    """Return the keys that the graph for a sequence of ``longest`` positions has room for, at most ``most``."""
    keys = _FEWEST_KEYS
    while keys < longest:
        keys *= 4
    return min(keys, most)


def rows_of_graph(count: int) -> int | None:
    """Return the rows of the graph that runs ``count`` sequences; None where they are too many."""
    return next((size for size in _SIZES if size >= count), None)


class DecodeGraphs:
    """The graphs of one engine, recorded when a size is first needed.

    Attributes:
        num_replays: Passes that ran as graphs.
    """

    def __init__(self, decoder: Decoder, cache: KvBlocks, *, max_model_len: int, records: bool = True) -> None:
        """Decode with ``decoder`` and ``cache``, neither of which moves.

        Args:
            records: Record graphs; False launches the same kernels one by one, for tests without a GPU.
        """
        self._decoder, self._cache, self._records = decoder, cache, records
        self._max_model_len = max_model_len
        self._graphs: dict[tuple[int, int, int, int], _DecodeGraph] = {}
        self._pool: Any | None = None
        self._has_failed = False
        self.num_replays = 0

    @staticmethod
    def suit(decoder: Decoder) -> bool:
        """Return whether every layer of the model has kernels that a graph can record."""
        if decoder.device.type != "cuda":
            return False
        rules = (decoder.config.attention_rule(layer) for layer in range(decoder.config.num_layers))
        like = torch.empty(0, dtype=decoder.dtype, device=decoder.device)
        return choose_backend(like) is Backend.TRITON and all(rule.suits_kernels for rule in rules)

    def run(self, rows: Sequence[DecodeRow], lora: LoraContext | None, segments: SegmentTable) -> Scores | None:
        """Return the scores of the rows, valid until the next pass; None where the pass is not for a graph.

        Args:
            rows: In stream order.
            lora: The adapters; None for the frozen model alone.
            segments: The slots of the rows, for as many rows as :func:`rows_of_graph` says.
        """
        size = rows_of_graph(len(rows))
        if self._has_failed or size is None:
            return None
        if lora is not None and (lora.magnitudes is not None or lora.saved or not lora.factors):
            return None
        rank_class, place = 0, 0
        if lora is not None:
            if not isinstance(lora.tables, RowTables):
                return None
            # the bank's copy for products may move, and a wider rank needs other kernels
            rank_class = lora.tables.rank_class
            place = next(iter(lora.factors.values())).a_RK.data_ptr()
        longest = max(row.position for row in rows) + 1
        key = (size, keys_of_graph(longest, most=self._max_model_len), rank_class, place)
        graph = self._graphs.get(key) or self._recorded(key, lora)
        if graph is None:
            return None
        self.num_replays += 1
        return graph.run(rows, lora, segments).first(len(rows))

    def _recorded(self, key: tuple[int, int, int, int], lora: LoraContext | None) -> _DecodeGraph | None:
        """Record a graph; after a failure, such as too little memory, passes are launched one by one for good."""
        if self._records and self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._graphs[key] = _DecodeGraph(
                key[0],
                decoder=self._decoder,
                cache=self._cache,
                lora=lora,
                most_keys=key[1],
                max_model_len=self._max_model_len,
                pool=self._pool,
                records=self._records,
            )
        except RuntimeError as error:
            _log.warning("decoding without CUDA graphs from now on: %s", error)
            self._has_failed = True
            return None
        return self._graphs[key]


class _FixedPages:
    """Attention of one new position a row; satisfies :class:`cohort.models.attention.AttentionContext`."""

    def __init__(self, cache: KvBlocks, rows_T: Tensor, tiles: PagedTiles, *, max_model_len: int) -> None:
        self._cache, self._rows_T, self._tiles, self._max_model_len = cache, rows_T, tiles, max_model_len
        # zeros where there is no sequence; one for all layers, so that none has to be filled
        self._o_THE: Tensor | None = None

    @property
    def num_positions(self) -> int:
        # the rotary table moves when it grows, and graphs know where it is: it has its full length from the first on
        return self._max_model_len

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        keys, values = self._cache.of_layer(layer_index)
        if self._o_THE is None:
            self._o_THE = torch.zeros_like(q_THE, memory_format=torch.contiguous_format)
        return paged_attention(
            q_THE,
            keys,
            values,
            tiles=self._tiles,
            page_rows=BLOCK_ROWS,
            window=rule.window,
            o_THE=self._o_THE,
            new=NewPages(k_TGE=k_TGE, v_TGE=v_TGE, rows_T=self._rows_T),
        )


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """What a pass reads, as parts of one buffer.

    Attributes:
        long_3T: int64: the tokens, their positions, and the rows of the pool that they are stored in.
        tiles_T4, tables_TP: As :class:`PagedTiles` has them.
    """

    long_3T: Tensor
    tiles_T4: Tensor
    tables_TP: Tensor

    @classmethod
    def within(cls, buffer: Tensor, *, size: int) -> _Inputs:
        long, tiles, tables = buffer.split([6 * size, 4 * size, len(buffer) - 10 * size])
        return cls(
            long_3T=long.view(torch.int64).view(3, size),
            tiles_T4=tiles.view(size, 4),
            tables_TP=tables.view(size, -1),
        )


class _DecodeGraph:
    """One recording and the tensors it reads."""

    def __init__(
        self,
        size: int,
        *,
        decoder: Decoder,
        cache: KvBlocks,
        lora: LoraContext | None,
        most_keys: int,
        max_model_len: int,
        pool: Any,
        records: bool,
    ) -> None:
        device, pages = decoder.device, blocks_for(most_keys)
        self._size, self._decoder, self._records = size, decoder, records
        # one transfer a pass: everything that a pass reads is in one buffer, each part without gaps
        host = torch.zeros(size * (3 * 2 + 4 + pages), dtype=torch.int32)
        self._host = pinned(host) if records else host
        self._staged = self._host.to(device, copy=True)
        self._filled = _Inputs.within(self._host, size=size)
        inputs = _Inputs.within(self._staged, size=size)
        self._tokens_T, self._positions_T, rows_T = inputs.long_3T
        # the pages that each row of the host's table holds
        self._pages: list[Sequence[int]] = [()] * size
        tiles = PagedTiles(tiles_N4=inputs.tiles_T4, tables_SP=inputs.tables_TP, queries=1, most_keys=most_keys)
        self._attention = _FixedPages(cache, rows_T, tiles, max_model_len=max_model_len)
        self._lora: LoraContext | None = None
        self._row_tables: RowTables | None = None
        if lora is not None:
            assert isinstance(lora.tables, RowTables), "checked before"
            nothing = SegmentTable(num_rows=size, offsets=(0,) * (lora.slots.num_slots + 1), samples=())
            self._row_tables = RowTables(nothing, lora.slots, device=device, rank_class=lora.tables.rank_class)
            self._row_tables.side = torch.cuda.Stream(device) if records else None
            _ = self._row_tables.rows_T4  # it is sent when it is first asked for: before the recording
            self._lora = replace(lora, segments=replace(nothing, multiplies_slots=True), tables=self._row_tables)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._scores: Scores | None = None
        if records:
            decoder.is_recorded = True
            self._record(pool)

    def run(self, rows: Sequence[DecodeRow], lora: LoraContext | None, segments: SegmentTable) -> Scores:
        self._fill(rows)
        if self._row_tables is not None and lora is not None:
            self._row_tables.update(segments, lora.slots)
        if self._graph is None:
            return self._pass()
        self._graph.replay()
        assert self._scores is not None, "recorded together with the graph"
        return self._scores

    def _fill(self, rows: Sequence[DecodeRow]) -> None:
        if self._records:
            torch.cuda.current_stream().synchronize()  # the last transfer still reads the pinned memory
        count, filled = len(rows), self._filled
        long, tiles, tables = filled.long_3T.numpy(), filled.tiles_T4.numpy(), filled.tables_TP.numpy()
        long[:, count:], tiles[count:] = 0, 0
        positions = [row.position for row in rows]
        newest = [row.blocks[row.position // BLOCK_ROWS] * BLOCK_ROWS + row.position % BLOCK_ROWS for row in rows]
        long[:, :count] = [row.token for row in rows], positions, newest
        tiles[:count, 0] = tiles[:count, 3] = np.arange(count)
        tiles[:count, 1], tiles[:count, 2] = 1, positions
        for index, row in enumerate(rows):
            # a page more every 16 tokens; what is behind a sequence's own pages is not read
            pages = row.blocks[: blocks_for(row.position + 1)]
            if pages != self._pages[index]:
                tables[index, : len(pages)] = pages
                self._pages[index] = pages
        self._staged.copy_(self._host, non_blocking=True)

    def _record(self, pool: Any) -> None:
        # one pass before recording compiles kernels and sets up libraries; it is all filler
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._pass()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # other threads allocate pinned memory for adapters meanwhile
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._scores = self._pass()

    @torch.no_grad()
    def _pass(self) -> Scores:
        hidden_TD = self._decoder.forward(
            self._tokens_T, positions_T=self._positions_T, attention=self._attention, lora=self._lora
        )
        return Scores.of(self._decoder.logits(hidden_TD))
