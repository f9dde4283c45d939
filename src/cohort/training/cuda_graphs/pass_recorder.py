"""Records passes: their kernels are loaded, and then their launches are kept in memory that all recordings share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch

from cohort.adapters.bank import AdapterBank
from cohort.core.process.gc_off import collections_off
from cohort.kernels.exact_product import AgreedShapes, is_settled
from cohort.kernels.packed_linear import SlotTable
from cohort.kernels.packed_linear.frozen_product import agreed_shapes
from cohort.models.decoder import Decoder
from cohort.training.cuda_graphs.asking_ahead import AskingAhead, settle_asking
from cohort.training.cuda_graphs.captured_pass import CapturedPass, RecordingMemory
from cohort.training.cuda_graphs.few_layers import are_layers_alike
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind
from cohort.training.cuda_graphs.recording_bytes import estimate_depths, extrapolated_bytes
from cohort.training.device_memory import is_out_of_memory, release_cached

__all__ = ["PassRecorder"]

# with as much free memory, a recording that finds most of its memory in its pool frees nothing before it
LEAST_FREE_BYTES = 1 << 30


class PassRecorder:
    """Makes the graphs of one executor. With the first that trains, a thread begins to ask a BLAS about other sizes.

    Attributes:
        agree: Of ranks that run each pass together: whether all of them recorded it, from whether this one did. None
            where passes are one rank's own.
    """

    def __init__(self, decoder: Decoder, bank: AdapterBank, *, most_bytes: int | None = None) -> None:
        """Record nothing yet; ``most_bytes``: as of ``ExecutorSettings.graph_bytes``."""
        self._decoder, self._bank = decoder, bank
        self._memory: RecordingMemory | None = None
        # of the largest pass that was recorded, or that memory was reserved for
        self._largest_rows = 0
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._waited_seconds = 0.0
        self.agree: Callable[[bool], bool] | None = None
        self._most_bytes = most_bytes
        self._asking: AskingAhead | None = None

    @property
    def capture_seconds(self) -> float:
        """Seconds that the device has waited for recordings so far; what it computed meanwhile is not counted.

        Waits until the last recording has ended.
        """
        waits, self._waits = self._waits, []
        for before, after in waits:
            after.synchronize()
            self._waited_seconds += before.elapsed_time(after) / 1e3
        return self._waited_seconds

    def give_up_memory(self) -> None:
        """Ask the BLAS nothing more, and let go of the memory that recordings share, once no graph is left."""
        if self._asking is not None and self._asking.is_alive():
            self._asking.end()
        if self._memory is not None:
            self._memory.free()
        self._memory, self._largest_rows = None, 0

    @property
    def can_reserve(self) -> bool:
        """Whether memory for a recording can be taken without it: no rank waits, and few layers tell how much."""
        return self.agree is None and self._depths is not None and _cuts_large_blocks()

    @property
    def _depths(self) -> tuple[int, int] | None:
        return estimate_depths(self._decoder, adapted=self._bank.layout.columns)

    def reserve(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable) -> bool:
        """Take the memory of a recording that is not made, for smaller ones; return whether there was as much.

        Where it turns out too little, a later recording takes the rest.
        """
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        num_bytes = self._estimated_bytes(shape, kind=kind, slots=slots)
        if num_bytes is None:
            return False
        num_bytes = num_bytes if self._most_bytes is None else min(num_bytes, self._most_bytes)
        free, _ = torch.cuda.mem_get_info(self._bank.weights_RD.device)
        # at first without waiting for the device, where nothing has to be freed for it
        attempts = (False, True) if free - num_bytes >= LEAST_FREE_BYTES else (True,)
        is_reserved = any(self._try_to_reserve(num_bytes, is_short=is_short) for is_short in attempts)
        if is_reserved:
            self._largest_rows = max(self._largest_rows, shape.num_rows)
            after.record()
            self._waits.append((before, after))
        return is_reserved

    def record(
        self, shape: PassShape, *, kind: GraphKind, slots: SlotTable, is_short: bool, tries_again: bool = True
    ) -> CapturedPass | None:
        """Return a new graph; None where there is no memory for it.

        Args:
            is_short: As of :meth:`is_short`.
            tries_again: Whether the allocator gives back what it keeps for other uses, for a second attempt.
        """
        graph = self._attempt(shape, kind=kind, slots=slots, is_short=is_short)
        if graph is None and not is_short and tries_again:
            # again, with what the allocator keeps for other uses
            graph = self._attempt(shape, kind=kind, slots=slots, is_short=True)
        return graph

    def warm_up(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable) -> bool:
        """Run a pass as it would be recorded; return whether there was memory for that."""
        assert self._memory is not None, "the first training recording, or what was reserved for it, has made it"
        try:
            graph = CapturedPass(shape, decoder=self._decoder, bank=self._bank, slots=slots, kind=kind)
            graph.warm_up(self._memory, with_few_layers=self._are_layers_alike())
            return True
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        release_cached(self._bank.weights_RD.device)
        return False

    def is_settled(self, shape: PassShape, *, kind: GraphKind) -> bool:
        """Return whether a recording asks a BLAS nothing and loads none of its kernels; a warm-up settles that."""
        if not self._bank.is_exact:
            return True
        return is_settled(shape.num_rows, agreed=self._agreed, trains=kind.trains)

    @property
    def _agreed(self) -> AgreedShapes | None:
        return agreed_shapes(linear.frozen for layer in self._decoder.layers for linear in layer.linears)

    def is_short(self, shape: PassShape) -> bool:
        """Return whether a recording may need memory that the allocator keeps for other uses."""
        # ranks that record together wait for each other anyway
        if self.agree is not None or self._decoder.ring is not None:
            return True
        # a smaller pass finds room in the memory of a larger one, or in what was reserved for it
        free, _ = torch.cuda.mem_get_info(self._bank.weights_RD.device)
        return shape.num_rows > self._largest_rows or free < LEAST_FREE_BYTES

    def _attempt(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable, is_short: bool) -> CapturedPass | None:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        if self._memory is None:
            self._memory = RecordingMemory()
        graph: CapturedPass | None = None
        try:
            graph = CapturedPass(shape, decoder=self._decoder, bank=self._bank, slots=slots, kind=kind)
            graph.warm_up(self._memory, with_few_layers=not is_short and self._are_layers_alike())
        except RuntimeError as error:
            # ranks that run it together wait for this one in the middle of the pass: they end with it
            if self.agree is not None or not is_out_of_memory(error):
                raise
            graph = None
        if graph is not None and not self._is_recorded(graph, is_short=is_short):
            graph = None
        if graph is None:
            self._forget_copies()
            self._discard_failed()
            return None
        self._largest_rows = max(self._largest_rows, shape.num_rows)
        after.record()
        self._waits.append((before, after))
        if kind.trains:
            self._begin_asking()
        return graph

    def _begin_asking(self) -> None:
        """Have a thread ask the BLAS about other sizes, once: the products of a training pass are known by now."""
        if self._asking is None and self._bank.is_exact and (agreed := self._agreed) is not None:
            room = functools.partial(_room, self._bank.weights_RD.device)
            self._asking = AskingAhead(agreed, room=room)
            # where no thread can be started, the passes ask
            with contextlib.suppress(RuntimeError):
                self._asking.start()

    def _estimated_bytes(self, shape: PassShape, *, kind: GraphKind, slots: SlotTable) -> int | None:
        """Return what a recording would take, by its pass through few layers; None where even that is too much."""
        depths = self._depths
        assert depths is not None, "asked only where few layers tell"
        few, more = depths
        # of another executor's sizes
        settle_asking()
        if self._memory is None:
            self._memory = RecordingMemory()
        try:
            graph = CapturedPass(shape, decoder=self._decoder, bank=self._bank, slots=slots, kind=kind)
            # garbage that is freed in the middle of a pass would count with each layer
            with collections_off():
                # the first sets up libraries and asks a BLAS, which would count as its own
                counts = (few, more, few)
                _, more_bytes, few_bytes = [graph.peak_bytes(self._memory, num_layers=count) for count in counts]
            share = (len(self._decoder.layers) - few) / (more - few)
            return extrapolated_bytes(few_bytes, more_bytes, share=share)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self._discard_failed()
        return None

    def _try_to_reserve(self, num_bytes: int, *, is_short: bool) -> bool:
        assert self._memory is not None, "it is there since its size was asked about"
        try:
            self._memory.reserve(num_bytes, is_short=is_short)
            return True
        except RuntimeError as error:
            if not _is_shortage(error):
                raise
        self._discard_failed()
        return False

    def _discard_failed(self) -> None:
        """Free what a failed attempt took.

        Torch refuses a pool in which nothing but a failed recording was begun, so such a pool is replaced.
        """
        if self._largest_rows == 0:
            self._memory = RecordingMemory()
        release_cached(self._bank.weights_RD.device)

    def _are_layers_alike(self) -> bool:
        return are_layers_alike(self._decoder, adapted=self._bank.layout.columns)

    def _forget_copies(self) -> None:
        """Let a ring of layers copy them again: copies that a broken recording names were never made."""
        if self._decoder.ring is not None:
            self._decoder.ring.forget()

    def _is_recorded(self, graph: CapturedPass, *, is_short: bool) -> bool:
        """Record a pass, and return whether that worked here and wherever it is run together."""
        is_recorded = True
        try:
            graph.record(self._memory, is_short=is_short)
        except BaseException as error:
            if not (isinstance(error, RuntimeError) and _is_shortage(error)):
                self._forget_copies()
                raise
            is_recorded = False
        return is_recorded if self.agree is None else self.agree(is_recorded)


def _room(device: torch.device) -> int:
    """Return the bytes of a device that are free now, within the allocator's limit, less ``LEAST_FREE_BYTES``."""
    free, total = torch.cuda.mem_get_info(device)
    limit = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free, limit - torch.cuda.memory_reserved(device)) - LEAST_FREE_BYTES


def _cuts_large_blocks() -> bool:
    """Return whether the allocator takes what a recording needs out of one large block."""
    # a variable of the environment may set a size above which none is cut; -1 without it, and 0 where the driver does
    # the allocator's work
    return int(torch.cuda.memory_stats().get("max_split_size", 0)) < 0


def _is_shortage(error: BaseException) -> bool:
    # a recording that runs out of memory may also end as an error of the recording itself
    return is_out_of_memory(error) or "captur" in str(error).lower()
