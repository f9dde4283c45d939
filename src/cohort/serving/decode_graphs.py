"""Decoding as CUDA graphs: one launch of the host for a pass of one row a sequence.

A pass over an 8B model is some 500 launches, and the GPU computes a small batch faster than the host can launch them.
A graph records the launches for a number of rows; tokens, positions, pages and each row's adapter are read from tensors
that are filled before each replay, so that sequences and adapters come and go without another recording.

Shapes:  T rows of a graph · P pages of a sequence at its longest · V vocabulary
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_linear.tables import SlotTable
from cohort.kernels.paged_attention import NewPages, PagedTiles, paged_attention
from cohort.kernels.segments import SegmentTable
from cohort.models.config import AttentionRule
from cohort.models.decode_sizes import DECODE_SIZES, rows_of_graph
from cohort.models.decoder import Decoder
from cohort.serving.decode_inputs import DecodeInputs, DecodeRow
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from cohort.serving.sampler import Scores

__all__ = ["DecodeGraphs", "DecodeRow", "keys_of_graph"]

_log = logging.getLogger(__name__)
# Keys of the longest sequence that a graph has room for, times four from one class to the next: attention launches a
# program for every piece of the keys that there might be, and of a context of 128k nearly all would find nothing.
_FEWEST_KEYS = 1024


def keys_of_graph(longest: int, *, most: int) -> int:
    """Return the keys that the graph for a sequence of ``longest`` positions has room for, at most ``most``."""
    keys = _FEWEST_KEYS
    while keys < longest:
        keys *= 4
    return min(keys, most)


class _GraphKey(NamedTuple):
    """What a recording is good for.

    Attributes:
        keys: Of the longest sequence.
        rank: Widest rank of an adapter; 0 without adapters.
        place: Of the factors: the bank's copy for products may move.
        kind: Which kernels multiply adapters.
    """

    size: int
    keys: int
    rank: int = 0
    place: int = 0
    kind: tuple[bool, ...] = ()


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
        self._graphs: dict[_GraphKey, _DecodeGraph] = {}
        self._pool: Any | None = None
        self._most_rows = DECODE_SIZES[-1]
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
        if size is None or size > self._most_rows:
            return None
        longest = max(row.start for row in rows) + 1
        key = _GraphKey(size, keys_of_graph(longest, most=self._max_model_len))
        if lora is not None:
            if lora.magnitudes is not None or lora.saved or not lora.factors or lora.tables is None:
                return None
            key = key._replace(
                rank=_rank_of(lora.tables),
                place=next(iter(lora.factors.values())).a_RK.data_ptr(),
                kind=_kind_of(lora.tables),
            )
        graph = self._graphs.get(key) or self._recorded(key, lora)
        if graph is None:
            return None
        self.num_replays += 1
        return graph.run(rows, lora, segments).first(len(rows))

    def _recorded(self, key: _GraphKey, lora: LoraContext | None) -> _DecodeGraph | None:
        """Record a graph; after a failure, such as too little memory, as many rows are launched one by one for good."""
        if self._records and self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._graphs[key] = _DecodeGraph(
                key,
                decoder=self._decoder,
                cache=self._cache,
                lora=lora,
                max_model_len=self._max_model_len,
                pool=self._pool,
                records=self._records,
            )
        except RuntimeError as error:
            _log.warning("decoding %d rows or more without CUDA graphs from now on: %s", key.size, error)
            self._most_rows = key.size - 1
            if not self._graphs:
                # torch refuses a pool in which nothing but a failed recording was begun
                self._pool = None
            return None
        return self._graphs[key]


def _rank_of(tables: RowTables | LaunchTables) -> int:
    """Return up to which rank a graph takes adapters: a power of two, so that few are recorded."""
    return tables.rank_class if isinstance(tables, RowTables) else max(16, 1 << (tables.max_rank - 1).bit_length())


def _kind_of(tables: RowTables | LaunchTables) -> tuple[bool, ...]:
    return () if isinstance(tables, RowTables) else (tables.exact, tables.has_dropout)


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


def _fixed_tables(
    lora: LoraContext, nothing: SegmentTable, *, key: _GraphKey, device: torch.device, has_side: bool
) -> RowTables | LaunchTables:
    """Return tables for ``key`` that stay where they are; they are on the device before the recording."""
    assert lora.tables is not None, "checked before"
    if isinstance(lora.tables, RowTables):
        tables = RowTables(nothing, lora.slots, device=device, rank_class=key.rank)
        tables.side = torch.cuda.Stream(device) if has_side else None
        _ = tables.rows_T4  # it is sent when it is first asked for
        return tables
    return LaunchTables(
        nothing,
        lora.slots,
        device=device,
        fixed_launch=True,
        exact=lora.tables.exact,
        most_samples=lora.slots.num_slots,
        most_rank=key.rank,
    )


class _DecodeGraph:
    """One recording and the tensors it reads."""

    def __init__(
        self,
        key: _GraphKey,
        *,
        decoder: Decoder,
        cache: KvBlocks,
        lora: LoraContext | None,
        max_model_len: int,
        pool: Any,
        records: bool,
    ) -> None:
        size, device = key.size, decoder.device
        self._decoder = decoder
        self._inputs = DecodeInputs(size, pages=blocks_for(key.keys), device=device, is_pinned=records)
        self._tokens_T, self._positions_T, rows_T = self._inputs.long_3T
        tiles = self._inputs.tiles(most_keys=key.keys)
        self._attention = _FixedPages(cache, rows_T, tiles, max_model_len=max_model_len)
        self._lora: LoraContext | None = None
        self._tables: RowTables | LaunchTables | None = None
        self._described: tuple[SegmentTable, SlotTable] | None = None
        if lora is not None:
            nothing = SegmentTable(num_rows=size, offsets=(0,) * (lora.slots.num_slots + 1), samples=())
            self._tables = _fixed_tables(lora, nothing, key=key, device=device, has_side=records)
            self._lora = replace(lora, segments=replace(nothing, multiplies_slots=True), tables=self._tables)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._scores: Scores | None = None
        if records:
            decoder.is_recorded = True
            self._record(pool)

    def run(self, rows: Sequence[DecodeRow], lora: LoraContext | None, segments: SegmentTable) -> Scores:
        self._inputs.fill(rows)
        if self._tables is not None and lora is not None:
            self._describe(segments, lora.slots)
        if self._graph is None:
            return self._pass()
        self._graph.replay()
        assert self._scores is not None, "recorded together with the graph"
        return self._scores

    def _describe(self, segments: SegmentTable, slots: SlotTable) -> None:
        # between two tokens of the same sequences nothing changes
        if self._described is None or self._described[0] is not segments or self._described[1] is not slots:
            assert self._tables is not None, "there are adapters"
            self._tables.update(segments, slots)
            self._described = segments, slots

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
