"""One pass recorded as a CUDA graph, or as two where the weights of its tokens follow from its losses."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.data.packing import HostStream
from cohort.kernels.packed_linear import SlotTable
from cohort.models.decoder import Decoder
from cohort.training.backward_start import seeded
from cohort.training.cuda_graphs.few_layers import few_layers, first_layers
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.pass_tensors import PassTensors
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from cohort.training.token_losses import token_losses

__all__ = ["CapturedPass", "RecordingMemory", "StagedReplay"]


class RecordingMemory:
    """The memory that the graphs of one executor share: they are replayed one after the other.

    Attributes:
        stream: What they are recorded on, and launched on before that. The allocator gives memory again on the stream
            that it was taken on: on a stream of its own each launch would take some more of the device.
    """

    def __init__(self) -> None:
        """Take none yet."""
        self._pool: Any = torch.cuda.graph_pool_handle()
        # the pool lasts as long as a graph that was recorded in it
        self._reserved: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()

    def reserve(self, num_bytes: int, *, is_short: bool) -> None:
        """Take ``num_bytes`` of the device at once, in which recordings find room until :meth:`free`.

        What a recording has given back serves all that follow it: the allocator keeps it for their pool, and cuts it.

        Args:
            is_short: As of :meth:`CapturedPass.record`.
        """
        graph, device = torch.cuda.CUDAGraph(), self.stream.device
        # a recording of nothing would be warned of; a kernel is loaded by its first launch, which none may record
        mark = torch.zeros(1, device=device)
        with self.recording(graph, is_short=is_short):
            mark.zero_()
            torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._reserved = graph

    def free(self) -> None:
        """Give back what was reserved, once no graph is left that was recorded in it."""
        if self._reserved is not None:
            self._reserved.reset()
            self._reserved = None

    @contextmanager
    def recording(self, graph: torch.cuda.CUDAGraph, *, is_short: bool) -> Iterator[None]:
        """Record into ``graph`` what is launched within; ``is_short``: as of :meth:`CapturedPass.record`."""
        # threads that write states copy from the device meanwhile; only this one's calls are recorded
        mode = "thread_local"
        # what was launched before may still run: a recording runs nothing
        if is_short:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        # not `torch.cuda.graph`: where a recording fails to begin or to end, it leaves its stream the current one
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self._pool, capture_error_mode=mode)
            try:
                yield
            finally:
                graph.capture_end()


@contextmanager
def _launched_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Launch what is within on ``stream``, in the order of the current one."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedReplay:
    """A graph whose tensors are filled for one pass; void once the graph is filled for another.

    Attributes:
        graph: The graph. It does not know its staged replays: a circle would keep the bank alive.
        filling: Which filling of its tensors this is.
    """

    graph: CapturedPass
    filling: int

    @property
    def awaits_weights(self) -> bool:
        """Whether its replay is a forward pass alone, to be followed by ``CapturedPasses.add_gradients``."""
        return self.graph.awaits_weights


class CapturedPass:
    """One graph and the tensors it reads.

    Attributes:
        shape: The largest pass it can be filled for.
        filling: How often it has been filled.
    """

    def __init__(
        self, shape: PassShape, *, decoder: Decoder, bank: AdapterBank, slots: SlotTable, kind: GraphKind
    ) -> None:
        """Allocate the tensors of a pass of ``decoder`` with ``bank``, filled with a pass that changes nothing."""
        self.shape = shape
        self.filling = 0
        self._kind = kind
        # where the terms decide on the weights, a graph of its own
        self._backward: torch.cuda.CUDAGraph | None = None
        self._tensors = PassTensors(
            shape,
            bank=bank,
            slots=slots,
            pads_attention=decoder.config.pads_attention,
            drops=kind.drops,
            leaves_out_rows=decoder.grouped_leaves_out_rows,
        )
        self._decoder, self._layout = decoder, bank.layout
        self._num_fetches = 0

    @property
    def awaits_weights(self) -> bool:
        return self._backward is not None

    def launch(self) -> None:
        """Run the pass as it is filled, kernel by kernel."""
        self._pass()

    def warm_up(self, memory: RecordingMemory, *, with_few_layers: bool) -> None:
        """Run the pass, all filler, which adds no gradient: kernels are compiled and libraries set up.

        It runs on the stream of ``memory``. From now on no weight of the model may move. Where layers are alike, a few
        of them launch all kernels.
        """
        self._decoder.is_recorded = True
        if self._decoder.ring is not None:
            self._decoder.ring.settle()
        few = few_layers(self._decoder, layout=self._layout) if with_few_layers else nullcontext()
        with _launched_on(memory.stream), few:
            self._pass()

    def peak_bytes(self, memory: RecordingMemory, *, num_layers: int) -> int:
        """Run the pass, all filler, through the first layers as :meth:`warm_up` does; return the most that it takes."""
        self._decoder.is_recorded = True
        device = memory.stream.device
        torch.cuda.reset_peak_memory_stats(device)
        with _launched_on(memory.stream), first_layers(self._decoder, num_layers):
            self._pass()
        # as asked for: what the allocator gives follows from what it has at hand
        asked = torch.cuda.memory_stats(device)
        # what it has set up for good, no recording takes
        return int(asked["requested_bytes.all.peak"] - asked["requested_bytes.all.current"])

    def record(self, memory: RecordingMemory | None, *, is_short: bool) -> None:
        """Record the pass in ``memory``.

        Args:
            is_short: Whether memory that the allocator keeps may be needed; it is freed then, and the device waits.
        """
        assert memory is not None, "it is there before the first recording"
        graph = torch.cuda.CUDAGraph()
        recording = functools.partial(memory.recording, is_short=is_short)
        if not self._kind.has_terms:
            with recording(graph):
                losses_T = self._pass()
        else:
            with recording(graph):
                losses_T = self._forward()
            # what the first keeps for the second stays its own: nothing else of the pool is replayed between the two
            self._backward = torch.cuda.CUDAGraph()
            with recording(self._backward):
                seeded(losses_T, self._tensors.weights_T).backward()
        self._graph, self._losses_T = graph, losses_T.detach()

    def stage(
        self, stream: HostStream, *, slots: SlotTable, divisors: Mapping[int, int] | None, fresh_slots: Collection[int]
    ) -> StagedReplay:
        """Fill the tensors for ``stream``; the next replay is this pass.

        Args:
            divisors: As of ``CapturedPasses.stage``.
        """
        self._tensors.fill(stream, slots=slots, divisors=divisors or {}, fresh_slots=fresh_slots)
        self.filling += 1
        return StagedReplay(graph=self, filling=self.filling)

    def replay(self) -> Tensor:
        """Run the pass and return its losses [T], which the next replay overwrites."""
        if (ring := self._decoder.ring) is not None:
            ring.settle()
            ring.num_fetches += self._num_fetches
        self._graph.replay()
        return self._losses_T

    def add_gradients(self, weights_T: Tensor) -> None:
        """Run the backward pass of the last replay."""
        assert self._backward is not None, "the weights of plain sums are filled in before the replay"
        self._tensors.weights_T.copy_(weights_T)
        self._backward.replay()

    def free(self) -> None:
        """Give back the recording's memory; the graph cannot be replayed after that."""
        self.filling += 1
        self._graph.reset()
        if self._backward is not None:
            self._backward.reset()
        del self._losses_T

    def _pass(self) -> Tensor:
        ring = self._decoder.ring
        before = 0 if ring is None else ring.num_fetches
        losses_T = self._forward()
        if self._kind.trains:
            seeded(losses_T, self._tensors.weights_T).backward()
        if ring is not None:
            # within the recording, which would else end before its last copies
            ring.settle()
            self._num_fetches = ring.num_fetches - before
        return losses_T.detach()

    def _forward(self) -> Tensor:
        tensors = self._tensors
        with torch.set_grad_enabled(self._kind.trains):
            return token_losses(
                self._decoder, tensors.batch, tensors.lora, attention=tensors.attention, needed=tensors.needed
            )
