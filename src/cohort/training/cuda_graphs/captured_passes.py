"""Passes of few tokens as CUDA graphs: one launch of the host instead of thousands.

A pass over an 8B model is some 2,500 launches, about 0.2 s of the host's time, while the GPU computes 2,000 tokens in
0.1 s. A graph records the launches once. Its kernels read what changes from step to step (tokens, rows of each slot,
ranks, scales) from tensors that are filled before each replay. What a launch must know beforehand (rows of the stream,
sequences and their greatest length, trained rows) is rounded up, so that few graphs serve all steps.

Losses that are plain sums of their tokens have weights that are known beforehand: one graph holds the forward and the
backward pass. Those of preferences follow from the losses, so forward and backward are a graph each, and the terms are
computed between the two.

Shapes:  T rows of the stream
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.data.packing import SlotSample, lay_out
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.packed_linear import SlotTable
from cohort.kernels.packed_linear.frozen_product import can_take_codes
from cohort.models.decoder import Decoder
from cohort.training.cuda_graphs.captured_pass import CapturedPass, StagedReplay
from cohort.training.cuda_graphs.pass_recorder import PassRecorder
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind, RecordingPolicy, rounded_up
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["CapturedPasses"]

# sizes that are recorded though no pass has asked for them: a ladder has up to 23, and each is host memory
MOST_SPARES = 24


class CapturedPasses:
    """The graphs of one executor. Training passes add to the bank's gradients; evaluation passes only measure.

    Attributes:
        recorder: Makes them.
    """

    def __init__(self, decoder: Decoder, bank: AdapterBank, *, most_rows: int, most_bytes: int | None = None) -> None:
        """Record passes of at most ``most_rows`` rows of ``decoder`` with ``bank``, which must not move.

        ``most_bytes``: as of :class:`PassRecorder`.
        """
        self._decoder, self._bank, self._most_rows = decoder, bank, most_rows
        # by kind and the widest rank they were recorded for: narrower packs may use them, too
        self._graphs: dict[tuple[GraphKind, int], list[CapturedPass]] = {}
        self._policy: RecordingPolicy | None = None
        self._has_launched = self._has_recorded = False
        # of the last training pass that was staged
        self._trained: GraphKind | None = None
        # what is to be recorded behind the next step: its kernels are loaded
        self._prepared: tuple[GraphKind, PassShape] | None = None
        # of sizes that no pass has asked for
        self._prepared_spare: tuple[GraphKind, PassShape] | None = None
        self._spares_left = MOST_SPARES
        self.recorder = PassRecorder(decoder, bank, most_bytes=most_bytes)
        self.num_replays = 0

    @property
    def sizes(self) -> dict[GraphKind, list[int]]:
        """Rows of the graphs of each kind, ascending."""
        found: dict[GraphKind, list[int]] = {}
        for (kind, _), graphs in self._graphs.items():
            found.setdefault(kind, []).extend(graph.shape.num_rows for graph in graphs)
        return {kind: sorted(rows) for kind, rows in found.items()}

    @property
    def capture_seconds(self) -> float:
        """As of :class:`PassRecorder`."""
        return self.recorder.capture_seconds

    @classmethod
    def where_they_run(
        cls, decoder: Decoder, bank: AdapterBank, *, settings: ExecutorSettings
    ) -> CapturedPasses | None:
        """Return them for a GPU with the grouped kernels; None elsewhere, for bridged models and for no tokens."""
        can_run = bank.weights_RD.is_cuda and decoder.can_be_recorded
        if not can_run or settings.graph_tokens == 0 or choose_backend(bank.compute_RD) is not Backend.TRITON:
            return None
        return cls(decoder, bank, most_rows=settings.graph_tokens, most_bytes=settings.graph_bytes)

    def give_up(self) -> bool:
        """Free the graphs and record no more; return whether graphs were recorded until now."""
        held = self._most_rows > 0
        self._most_rows = 0
        # a pass that is staged still names its graph, and one graph alone keeps the pool of all
        for graph in (graph for recorded in self._graphs.values() for graph in recorded):
            graph.free()
        self._graphs.clear()
        self._prepared = self._prepared_spare = None
        self.recorder.give_up_memory()
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

    def launch(self, need: PassShape, *, kind: GraphKind) -> None:
        """Run a pass of filler as one for ``need`` would be recorded, so that its kernels are compiled."""
        shape = rounded_up(need, padded=self._decoder.config.pads_attention, exact=self._bank.is_exact)
        slots = self._bank.slot_table()
        CapturedPass(shape, decoder=self._decoder, bank=self._bank, slots=slots, kind=kind).launch()

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
        upcoming: Callable[[], Sequence[PassShape]] | None = None,
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
            upcoming: Returns the training passes after this one, as far as they are known.
        """
        if sum(len(entry.sample.tokens) for entry in entries) >= self._most_rows:
            return None
        # the source is known once the ranks are connected; a pass in two recordings would have to leave the last layers
        # in their buffers between them
        if self._decoder.ring is not None and (from_terms or not self._decoder.ring.source.is_recordable):
            return None
        slots = self._bank.slot_table()
        widest = max(slots.ranks, default=0)
        if widest == 0:
            return None
        need = PassShape.of(entries)
        kind = GraphKind.MEASURES
        if divisors is not None:
            drops = any(entry.row_keys is not None for entry in entries)
            kind = GraphKind.of_training(from_terms=from_terms, drops=drops)
        graph = self._graph(need, kind=kind, slots=slots, widest=widest, upcoming=upcoming)
        if graph is None:
            return None
        stream = lay_out(entries, num_slots=slots.num_slots, num_rows=graph.shape.num_rows)
        return graph.stage(stream, slots=slots, divisors=None if from_terms else divisors, fresh_slots=fresh_slots)

    def record_ahead(self, upcoming: Callable[[], Sequence[PassShape]], *, num_rows: float) -> None:
        """Record a size that passes to come probably want, where the device is busy for about as long.

        Recorded when a pass needs it, it would make the device wait.

        Args:
            upcoming: As of :meth:`stage`.
            num_rows: Of the training passes that would take the device as long as what it has just been given to do.
        """
        # the device is nearly done where there was a recording since the last step
        has_recorded, self._has_recorded = self._has_recorded, False
        if has_recorded or self._policy is None or self._trained is None:
            return
        # ranks record together, and a ring of layers makes a recording wait for the device
        if self.recorder.agree is not None or self._decoder.ring is not None:
            return
        slots = self._bank.slot_table()
        # by the trials that are there now: what is recorded knows no wider rank, and none of the norms of a later step
        widest = max(slots.ranks, default=0)
        if widest == 0 or self._bank.has_magnitudes or not self._policy.hides_recording(num_rows):
            return
        wanted, self._prepared = self._prepared, None
        is_prepared = wanted is not None
        wanted = wanted or self._wanted_ahead(upcoming, widest=widest)
        if wanted is None:
            self._record_spare(num_rows, slots=slots, widest=widest)
        elif not (is_prepared or self.recorder.is_settled(wanted[1], kind=wanted[0])):
            # what a BLAS is asked about a new size waits for the step; the recording follows behind the next one
            if self._has_warmed_up(wanted[1], kind=wanted[0], slots=slots):
                self._prepared = wanted
        elif self._can_be_ahead(*wanted, widest=widest):
            self._add(wanted[1], kind=wanted[0], slots=slots, widest=widest)
        self._has_recorded = False

    def _wanted_ahead(
        self, upcoming: Callable[[], Sequence[PassShape]], *, widest: int
    ) -> tuple[GraphKind, PassShape] | None:
        assert self._policy is not None, "a pass has come"
        assert self._trained is not None, "and it trained"
        known = [need for need in upcoming() if need.num_rows <= self._most_rows]
        # evaluations announce nothing
        for kind, to_come in ((self._trained, known), (GraphKind.MEASURES, [])):
            recorded = [*self._recorded(kind, widest=widest)]
            shape = self._policy.ahead(recorded=recorded, kind=kind, upcoming=to_come)
            if shape is not None and self._can_be_ahead(kind, shape, widest=widest):
                return kind, shape
        return None

    def _record_spare(self, num_rows: float, *, slots: SlotTable, widest: int) -> None:
        """Record a size that no pass has asked for, of the ladder for fewer trials, or prepare it.

        Whatever keeps it from being recorded ends the ladder, and nothing else.
        """
        assert self._policy is not None, "a pass has come"
        assert self._trained is not None, "and it trained"
        if self._spares_left == 0 or sum(rank > 0 for rank in slots.ranks) < 2:
            return
        prepared, self._prepared_spare = self._prepared_spare, None
        spare = prepared or self._missing_spare(self._trained, widest=widest)
        if spare is None or not self._can_be_ahead(*spare, widest=widest):
            return
        kind, shape = spare
        is_settled = prepared is not None or self.recorder.is_settled(shape, kind=kind)
        # what a BLAS is asked waits for the step, and the device runs dry behind it
        if not (is_settled or self._policy.has_time_to_spare(num_rows)):
            return
        is_made = False
        try:
            if not is_settled:
                # its kernels, behind this step; itself behind the next one
                is_made = self.recorder.warm_up(shape, kind=kind, slots=slots)
                self._prepared_spare = spare
                return
            graph = self.recorder.record(shape, kind=kind, slots=slots, is_short=False, tries_again=False)
            if graph is not None:
                self._graphs.setdefault((kind, widest), []).append(graph)
                self._spares_left -= 1
                is_made = True
        finally:
            if not is_made:
                self._spares_left = 0

    def _missing_spare(self, kind: GraphKind, *, widest: int) -> tuple[GraphKind, PassShape] | None:
        assert self._policy is not None, "a pass has come"
        recorded = [*self._recorded(kind, widest=widest)]
        shape = self._policy.spare(recorded=recorded, kind=kind, most_rows=self._most_rows)
        return None if shape is None else (kind, shape)

    def _can_be_ahead(self, kind: GraphKind, shape: PassShape, *, widest: int) -> bool:
        """Return whether a recording that is missing would find its memory without waiting for the device."""
        is_missing = shape.num_rows <= self._most_rows and shape not in self._recorded(kind, widest=widest)
        return is_missing and not self.recorder.is_short(shape)

    def _add(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable, widest: int) -> CapturedPass | None:
        """Record a shape for packs of this widest rank; return None where there is no memory for it."""
        graph = self.recorder.record(shape, kind=kind, slots=slots, is_short=self.recorder.is_short(shape))
        self._has_recorded = True
        if graph is None:
            # larger passes are launched one by one from now on; recorded graphs stay
            self._most_rows = min(self._most_rows, shape.num_rows - 1)
        else:
            self._graphs.setdefault((kind, widest), []).append(graph)
        return graph

    def _has_warmed_up(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable) -> bool:
        """Run a pass as it would be recorded; return whether there was memory for that."""
        if self.recorder.warm_up(shape, kind=kind, slots=slots):
            return True
        # as after a recording that fails, or each step to come would try again
        self._most_rows = min(self._most_rows, shape.num_rows - 1)
        return False

    def _graph(
        self,
        need: PassShape,
        *,
        kind: GraphKind,
        slots: SlotTable,
        widest: int,
        upcoming: Callable[[], Sequence[PassShape]] | None,
    ) -> CapturedPass | None:
        # the first training pass is launched: it settles what no graph may change, such as where weights are
        if not self._has_launched:
            self._has_launched = kind.trains
            return None
        if self._policy is None:
            is_coded = can_take_codes(self._decoder.layers[0].linears[0].frozen)
            self._policy = RecordingPolicy(self._decoder.config, exact=self._bank.is_exact, coded=is_coded)
        if kind.trains:
            self._trained = kind
        recorded = self._recorded(kind, widest=widest)
        use, record = self._policy.choose(
            need,
            recorded=list(recorded),
            kind=kind,
            upcoming=None if upcoming is None else lambda: [p for p in upcoming() if p.num_rows <= self._most_rows],
        )
        if record is not None and record.num_rows <= self._most_rows:
            if kind.trains and not any(own.trains for own, _ in self._graphs):
                largest = self._reserve(record, kind=kind, slots=slots, widest=widest)
                if largest is not None and largest.shape.holds(need) and self._policy.is_near(record, largest.shape):
                    # the device waits for one recording at its first step, not for two
                    return largest
            if (graph := self._add(record, kind=kind, slots=slots, widest=widest)) is not None:
                return graph
        return None if use is None else recorded[use]

    def _recorded(self, kind: GraphKind, *, widest: int) -> dict[PassShape, CapturedPass]:
        """Return the graphs of a kind that packs of this widest rank can use."""
        return {
            graph.shape: graph
            for (own, rank), graphs in sorted(self._graphs.items(), reverse=True)
            if own is kind and rank >= widest
            for graph in graphs
        }

    def _reserve(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable, widest: int) -> CapturedPass | None:
        """Make room for the largest pass before the first one of ``shape`` is recorded: smaller ones find theirs in it.

        Recordings of ascending sizes would take memory of their own each, as no tensor of one has room for the next's.
        Where the largest would serve this pass, or few layers do not tell what it takes, it is recorded and returned.
        """
        assert self._policy is not None, "it has chosen the shape"
        most_rows = self._most_rows
        while (largest := self._policy.largest(shape, most_rows=most_rows)).num_rows > shape.num_rows:
            if self.recorder.can_reserve and not self._policy.is_near(shape, largest):
                if self.recorder.reserve(largest, kind=kind, slots=slots):
                    return None
            elif (graph := self._add(largest, kind=kind, slots=slots, widest=widest)) is not None:
                return graph
            self._most_rows = most_rows = max(shape.num_rows, most_rows // 2)
        return None
