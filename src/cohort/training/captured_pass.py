"""Passes of few tokens as CUDA graphs: one launch of the host instead of thousands.

A pass over an 8B model is some 2,500 launches, about 0.2 s of the host's time, while the GPU computes 2,000 tokens in
0.1 s. A graph records the launches once. Its kernels read what changes from step to step (tokens, rows of each slot,
ranks, scales) from tensors that are filled before each replay. What a launch must know beforehand (rows of the stream,
sequences and their greatest length, trained rows) is rounded up, so that few graphs serve all steps.

Losses that are plain sums of their tokens have weights that are known beforehand: one graph holds the forward and the
backward pass. Those of preferences follow from the losses, so forward and backward are a graph each, and the terms are
computed between the two.

Where Triton's kernels suit every layer, attention runs over the stream itself, as in a pass that is launched kernel by
kernel: its tiles are one more tensor. Other rules (soft-capped scores) pad their sequences.

Shapes:  T rows of the stream · M trained rows · S sequences · L greatest length of one · P padded rows (S + 1) L
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.data.packing import UNTRAINED, HostStream, PackedBatch, SlotSample, lay_out
from cohort.kernels.attention import RecordedTiles
from cohort.kernels.packed_linear import LaunchTables, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.attention import AttentionContext, RecordedAttention
from cohort.models.decoder import Decoder
from cohort.models.fixed_attention import FixedAttention, fixed_attention_rows
from cohort.training.device_memory import is_out_of_memory, release_cached
from cohort.training.recorded_shapes import PassShape, RecordingPolicy, rounded_up
from cohort.training.seeded import seeded
from cohort.training.token_losses import token_losses

__all__ = ["CapturedPasses", "StagedReplay"]


class _Kind(IntEnum):
    """What a graph does; an evaluation's passes only measure."""

    MEASURES = 0
    SUMS = 1
    TERMS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedReplay:
    """A graph whose tensors are filled for one pass; void once the graph is filled for another.

    Attributes:
        graph: The graph. It does not know its staged replays: a circle would keep the bank alive.
        filling: Which filling of its tensors this is.
    """

    graph: _CapturedPass
    filling: int

    @property
    def awaits_weights(self) -> bool:
        """Whether its replay is a forward pass alone, to be followed by :meth:`CapturedPasses.add_gradients`."""
        return self.graph.awaits_weights


class CapturedPasses:
    """The graphs of one executor. Training passes add to the bank's gradients; evaluation passes only measure.

    Attributes:
        capture_seconds: Time spent on recording, host and device.
        agree: Of ranks that run each pass together: whether all of them recorded it, from whether this one did. None
            where passes are one rank's own.
    """

    def __init__(self, decoder: Decoder, bank: AdapterBank, *, most_rows: int) -> None:
        """Record passes of at most ``most_rows`` rows of ``decoder`` with ``bank``, which must not move."""
        self._decoder, self._bank, self._most_rows = decoder, bank, most_rows
        # by kind and the widest rank they were recorded for: narrower packs may use them, too
        self._graphs: dict[tuple[_Kind, int], list[_CapturedPass]] = {}
        self._policy: RecordingPolicy | None = None
        self._has_launched = False
        self._pool: Any | None = None
        self.capture_seconds = 0.0
        self.num_replays = 0
        self.agree: Callable[[bool], bool] | None = None

    def give_up(self) -> bool:
        """Free the graphs and record no more; return whether graphs were recorded until now."""
        held = self._most_rows > 0
        self._most_rows = 0
        # a pass that is staged still names its graph, and one graph alone keeps the pool of all
        for graph in (graph for recorded in self._graphs.values() for graph in recorded):
            graph.free()
        self._graphs.clear()
        self._pool = None
        return held

    def add_gradients(self, staged: StagedReplay, weights_T: Tensor) -> None:
        """Run the backward pass of what :meth:`replay` has just computed, staged ``from_terms``.

        Args:
            weights_T: What the loss of each row of the stream counts in the sum of all slots' losses.
        """
        staged.graph.add_gradients(weights_T)

    def run(
        self,
        entries: Sequence[SlotSample],
        *,
        divisors: Mapping[int, int] | None = None,
        fresh_slots: Collection[int] = (),
    ) -> Tensor | None:
        """Stage a pass and replay it; None where its kernels are to be launched one by one."""
        staged = self.stage(entries, divisors=divisors, fresh_slots=fresh_slots)
        return None if staged is None else self.replay(staged)

    def launch(self, need: PassShape, *, trains: bool) -> None:
        """Run a pass of filler as one for ``need`` would be recorded, so that its kernels are compiled."""
        shape = rounded_up(need, padded=self._decoder.config.pads_attention, exact=self._bank.is_exact)
        slots = self._bank.slot_table()
        kind = _Kind.SUMS if trains else _Kind.MEASURES
        _CapturedPass(shape, decoder=self._decoder, bank=self._bank, slots=slots, kind=kind).launch()

    def replay(self, staged: StagedReplay) -> Tensor | None:
        """Run a staged pass and return its losses [T], valid until the next replay.

        None where its graph has been given up or filled for another pass since.
        """
        if self._most_rows == 0 or staged.graph.filling != staged.filling:
            return None
        self.num_replays += 1
        return staged.graph.replay()

    def stage(
        self,
        entries: Sequence[SlotSample],
        *,
        divisors: Mapping[int, int] | None = None,
        fresh_slots: Collection[int] = (),
        from_terms: bool = False,
    ) -> StagedReplay | None:
        """Fill the tensors of a graph for a pass over ``entries``; None where its kernels are launched one by one.

        The transfer is ordered after the replays so far, and the next replay of that graph is this pass.

        Args:
            entries: As :func:`cohort.data.packing.pack` takes them.
            divisors: By slot: the gradients of the sums of token losses, divided, are added to the bank. With None the
                pass only measures.
            fresh_slots: Slots whose gradients overwrite what the bank holds instead.
            from_terms: The weights of the tokens come after the losses, with :meth:`add_gradients`, not from
                ``divisors``.
        """
        lengths = [len(entry.sample.tokens) for entry in entries]
        used = sum(lengths)
        # dropout draws by keys of the step, which are not among the tensors that are filled
        if used >= self._most_rows or any(entry.row_keys is not None for entry in entries):
            return None
        # the source is known once the ranks are connected; a pass in two recordings would have to leave the last layers
        # in their buffers between them
        if self._decoder.ring is not None and (from_terms or not self._decoder.ring.source.is_recordable):
            return None
        slots = self._bank.slot_table()
        widest = max(slots.ranks, default=0)
        if any(slots.dropouts) or widest == 0:
            return None
        need = PassShape(
            num_rows=used + 1,
            num_sequences=len(entries),
            length=max(lengths),
            num_trained=sum(int(np.count_nonzero(entry.sample.trained[1:])) for entry in entries),
        )
        kind = _Kind.MEASURES if divisors is None else _Kind.TERMS if from_terms else _Kind.SUMS
        graph = self._graph(need, kind=kind, slots=slots, widest=widest)
        if graph is None:
            return None
        stream = lay_out(entries, num_slots=slots.num_slots, num_rows=graph.shape.num_rows)
        return graph.stage(stream, slots=slots, divisors=None if from_terms else divisors, fresh_slots=fresh_slots)

    def _graph(self, need: PassShape, *, kind: _Kind, slots: SlotTable, widest: int) -> _CapturedPass | None:
        trains = kind is not _Kind.MEASURES
        # the first training pass is launched: it settles what no graph may change, such as where weights are
        if not self._has_launched:
            self._has_launched = trains
            return None
        if self._policy is None:
            self._policy = RecordingPolicy(self._decoder.config, exact=self._bank.is_exact)
        recorded = {
            graph.shape: graph
            for (own, rank), graphs in sorted(self._graphs.items(), reverse=True)
            if own is kind and rank >= widest
            for graph in graphs
        }
        use, record = self._policy.choose(need, recorded=list(recorded), trains=trains)
        if record is not None and record.num_rows <= self._most_rows:
            graph = self._record(record, kind=kind, slots=slots)
            if graph is not None:
                self._graphs.setdefault((kind, widest), []).append(graph)
                return graph
        return None if use is None else recorded[use]

    def _record(self, shape: PassShape, *, kind: _Kind, slots: SlotTable) -> _CapturedPass | None:
        """Return a new graph; None where there is no memory for it."""
        begun = time.perf_counter()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph: _CapturedPass | None = None
        try:
            graph = _CapturedPass(shape, decoder=self._decoder, bank=self._bank, slots=slots, kind=kind)
            graph.warm_up()
        except RuntimeError as error:
            # ranks that run it together wait for this one in the middle of the pass: they end with it
            if self.agree is not None or not is_out_of_memory(error):
                raise
            graph = None
        if graph is not None and not self._is_recorded(graph):
            graph = None
        if graph is None:
            self._forget_copies()
            # larger passes are launched one by one from now on; recorded graphs stay
            self._most_rows = min(self._most_rows, shape.num_rows - 1)
            release_cached(self._bank.weights_RD.device)
            return None
        torch.cuda.synchronize()
        self.capture_seconds += time.perf_counter() - begun
        return graph

    def _forget_copies(self) -> None:
        """Let a ring of layers copy them again: copies that a broken recording names were never made."""
        if self._decoder.ring is not None:
            self._decoder.ring.forget()

    def _is_recorded(self, graph: _CapturedPass) -> bool:
        """Record a pass, and return whether that worked here and wherever it is run together."""
        is_recorded = True
        try:
            graph.record(self._pool)
        except BaseException as error:
            # a recording that runs out of memory may also end as an error of the recording itself
            is_shortage = is_out_of_memory(error) or "captur" in str(error).lower()
            if not (isinstance(error, RuntimeError) and is_shortage):
                self._forget_copies()
                raise
            is_recorded = False
        return is_recorded if self.agree is None else self.agree(is_recorded)


class _CapturedPass:
    """One graph and the tensors it reads, all of them in one buffer that one transfer fills."""

    def __init__(self, shape: PassShape, *, decoder: Decoder, bank: AdapterBank, slots: SlotTable, kind: _Kind) -> None:
        self.shape = shape
        self.filling = 0
        self._kind = kind
        # where the terms decide on the weights, a graph of its own
        self._backward: torch.cuda.CUDAGraph | None = None
        device = bank.weights_RD.device
        num_rows = shape.num_rows
        self._pads = decoder.config.pads_attention
        self._num_tiles = RecordedTiles.capacity(num_rows=num_rows, num_sequences=shape.num_sequences)
        num_padded = (shape.num_sequences + 1) * shape.length
        of_attention = (num_padded, num_rows) if self._pads else (-(-3 * self._num_tiles // 2), 0)
        sizes = (num_rows, num_rows, num_rows, shape.num_trained, *of_attention, -(-num_rows // 2))
        self._host = torch.zeros(sum(sizes), dtype=torch.int64).pin_memory()
        self._staged = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._host_parts = [part.numpy() for part in self._host.split(sizes)]
        tokens_T, positions_T, targets_T, rows_M, *of_attention_parts, weights = self._staged.split(sizes)
        self._weights_T = weights.view(torch.float32)[:num_rows]
        nothing = SegmentTable(num_rows=num_rows, offsets=(0,) * (slots.num_slots + 1), samples=())
        self._tables = LaunchTables(
            nothing,
            slots,
            device=device,
            fixed_launch=True,
            exact=bank.is_exact,
            most_samples=shape.num_sequences,
        )
        self._batch = PackedBatch(
            tokens_T=tokens_T,
            positions_T=positions_T,
            targets_T=targets_T,
            sequence_offsets=(0,),
            segments=nothing,
            trained_rows_M=rows_M,
            row_keys_T=None,
        )
        self._attention = self._attend_by(*of_attention_parts)
        self._lora = replace(bank.context(nothing), tables=self._tables)
        self._fill(_empty_stream(num_rows, num_slots=slots.num_slots), divisors={})
        self._copied = torch.cuda.Event()
        self._send()
        self._decoder = decoder
        self._num_fetches = 0

    @property
    def awaits_weights(self) -> bool:
        return self._backward is not None

    def launch(self) -> None:
        """Run the pass as it is filled, kernel by kernel."""
        self._pass(self._decoder)

    def warm_up(self) -> None:
        """Run the pass, all filler, which adds no gradient: kernels are compiled and libraries set up.

        From now on no weight of the model may move.
        """
        decoder = self._decoder
        decoder.is_recorded = True
        if decoder.ring is not None:
            decoder.ring.settle()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._pass(decoder)
        torch.cuda.current_stream().wait_stream(stream)

    def record(self, pool: Any) -> None:
        """Record the pass in the memory of ``pool``."""
        self._graph, self._losses_T = self._capture(self._decoder, pool=pool)

    def add_gradients(self, weights_T: Tensor) -> None:
        """Run the backward pass of the last replay."""
        assert self._backward is not None, "the weights of plain sums are filled in before the replay"
        self._weights_T.copy_(weights_T)
        self._backward.replay()

    def _attend_by(self, first: Tensor, second: Tensor) -> AttentionContext:
        shape = self.shape
        if self._pads:
            return FixedAttention(num_sequences=shape.num_sequences, length=shape.length, rows_P=first, places_T=second)
        table = first.view(torch.int32)[: 3 * self._num_tiles].view(-1, 3)
        return RecordedAttention(RecordedTiles(table, num_rows=shape.num_rows), num_positions=shape.length)

    def stage(
        self, stream: HostStream, *, slots: SlotTable, divisors: Mapping[int, int] | None, fresh_slots: Collection[int]
    ) -> StagedReplay:
        self._copied.synchronize()  # the last transfer still reads the pinned memory
        self._fill(stream, divisors=divisors or {})
        self._tables.update(stream.segments, slots, fresh_slots=fresh_slots)
        self._send()
        self.filling += 1
        return StagedReplay(graph=self, filling=self.filling)

    def replay(self) -> Tensor:
        if (ring := self._decoder.ring) is not None:
            ring.settle()
            ring.num_fetches += self._num_fetches
        self._graph.replay()
        return self._losses_T

    def free(self) -> None:
        """Give back the recording's memory; the graph cannot be replayed after that."""
        self.filling += 1
        self._graph.reset()
        if self._backward is not None:
            self._backward.reset()
        del self._losses_T

    def _fill(self, stream: HostStream, *, divisors: Mapping[int, int]) -> None:
        tokens, positions, targets, rows, *of_attention, weights = self._host_parts
        tokens[:], positions[:], targets[:] = stream.tokens, stream.positions, stream.targets
        # the rest of the trained rows names the filler row at the end, whose loss and gradient are zero
        rows[: len(stream.trained_rows)] = stream.trained_rows
        rows[len(stream.trained_rows) :] = self.shape.num_rows - 1
        self._fill_attention(stream.sequence_offsets, *of_attention)
        weight_of_row = weights.view(np.float32)[: self.shape.num_rows]
        weight_of_row[:] = 0.0
        for slot, divisor in divisors.items():
            own = stream.segments.rows(slot)
            weight_of_row[own] = np.where(stream.targets[own] != UNTRAINED, np.float32(1.0 / divisor), np.float32(0.0))

    def _fill_attention(self, offsets: tuple[int, ...], first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        shape = self.shape
        if self._pads:
            first[:], second[:] = fixed_attention_rows(
                offsets, num_rows=shape.num_rows, num_sequences=shape.num_sequences, length=shape.length
            )
            return
        entries = RecordedTiles.entries(offsets, num_rows=shape.num_rows, capacity=self._num_tiles)
        first.view(np.int32)[: entries.size] = entries.reshape(-1)

    def _send(self) -> None:
        self._staged.copy_(self._host, non_blocking=True)
        self._copied.record()

    def _capture(self, decoder: Decoder, *, pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        # threads that write states copy from the device meanwhile; only this one's calls are recorded
        recording = functools.partial(torch.cuda.graph, pool=pool, capture_error_mode="thread_local")
        if self._kind is not _Kind.TERMS:
            with recording(graph):
                losses_T = self._pass(decoder)
            return graph, losses_T
        with recording(graph):
            losses_T = self._forward(decoder)
        # what the first keeps for the second stays its own: nothing else of the pool is replayed between the two
        self._backward = torch.cuda.CUDAGraph()
        with recording(self._backward):
            seeded(losses_T, self._weights_T).backward()
        return graph, losses_T.detach()

    def _pass(self, decoder: Decoder) -> Tensor:
        ring = decoder.ring
        before = 0 if ring is None else ring.num_fetches
        losses_T = self._forward(decoder)
        if self._kind is not _Kind.MEASURES:
            seeded(losses_T, self._weights_T).backward()
        if ring is not None:
            # within the recording, which would else end before its last copies
            ring.settle()
            self._num_fetches = ring.num_fetches - before
        return losses_T.detach()

    def _forward(self, decoder: Decoder) -> Tensor:
        with torch.set_grad_enabled(self._kind is not _Kind.MEASURES):
            return token_losses(decoder, self._batch, self._lora, attention=self._attention)


def _empty_stream(num_rows: int, *, num_slots: int) -> HostStream:
    zeros = np.zeros(num_rows, dtype=np.int64)
    return HostStream(
        tokens=zeros,
        positions=zeros,
        targets=np.full(num_rows, UNTRAINED, dtype=np.int64),
        trained_rows=np.zeros(0, dtype=np.int64),
        row_keys=None,
        sequence_offsets=(0,),
        segments=SegmentTable(num_rows=num_rows, offsets=(0,) * (num_slots + 1), samples=()),
    )
