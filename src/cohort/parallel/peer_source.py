"""Streamed layers divided over the ranks: each keeps one part of every layer and copies the others' parts when needed.

Adapter parallelism (ALTO 6.2) gathers frozen shards collectively, so all ranks go through the layers together. Frozen
shards are only read, so here a rank copies them from its peers by itself (CUDA IPC; shared memory on a CPU): ranks run
passes of any number and size, none waits for another, and a rank without trials costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cohort.models.decoder import Decoder
from cohort.models.streaming.layer_streaming import ALIGNMENT, LayerStreaming
from cohort.models.streaming.weight_ring import Complete, CopyDone, Ready
from cohort.parallel.sent_parts import PartReceiver, PartSender
from cohort.parallel.shared_bytes import BytesHandle, open_bytes, share_bytes

__all__ = ["PeerSource", "has_parts", "peer_streaming", "shard_bytes"]


class PeerSource:
    """One rank's parts of all streamed layers, and those of its peers once they are connected."""

    def __init__(self, device: torch.device, *, rank: int, num_ranks: int, num_layers: int) -> None:
        """Keep part ``rank`` of ``num_ranks`` of each of ``num_layers`` streamed layers."""
        self.rank, self.num_ranks = rank, num_ranks
        self._device, self._num_layers = device, num_layers
        self._own_LB: Tensor | None = None
        self._handle: BytesHandle | None = None
        # of the own part of every layer: (begin, end) of the bytes that products read where they are, in order
        self._in_place: list[tuple[int, int]] = []
        # by rank, [streamed layers, bytes of a part]
        self._parts_LB: dict[int, Tensor] = {}
        # of peers whose memory cannot be opened
        self._receivers: dict[int, PartReceiver] = {}
        self._sender: PartSender | None = None
        self._streams = [torch.cuda.Stream(device) for _ in range(num_ranks)] if device.type == "cuda" else []

    def keep(self, place: int, content: Tensor) -> None:
        part = shard_bytes(content.nbytes, num_ranks=self.num_ranks)
        if self._own_LB is None:
            shared, self._handle = share_bytes(self._num_layers * part, device=self._device)
            self._own_LB = self._parts_LB[self.rank] = shared.view(self._num_layers, part)
        begin = min(self.rank * part, content.nbytes)
        own = content[begin : begin + part]
        self._own_LB[place, : own.nbytes].copy_(own)

    def in_place(self, place: int, begin: int, num_bytes: int) -> Tensor | None:
        """Return bytes that lie whole in this rank's part."""
        assert self._own_LB is not None, "parts are kept before they are read"
        part = self._own_LB.shape[1]
        within = begin - self.rank * part
        if within < 0 or within + num_bytes > part:
            return None
        # with the bytes behind it, which belong to no tensor
        if (own := (begin, begin + -(-num_bytes // ALIGNMENT) * ALIGNMENT)) not in self._in_place:
            self._in_place = sorted([*self._in_place, own])
        return self._own_LB[place, within : within + num_bytes]

    @property
    def handle(self) -> BytesHandle:
        """With it, peers open this rank's parts; all of them have been kept."""
        assert self._handle is not None, "the layers are kept before they are shared"
        assert self._own_LB is not None, "the handle is one to the layers"
        self._sender = self._sender or PartSender(self._own_LB)
        if self._device.type == "cuda":
            # peers read without asking: what they open must be complete
            torch.cuda.synchronize(self._device)
        return replace(self._handle, sender=self._sender.address)

    def connect(self, handles: Sequence[BytesHandle]) -> tuple[str, ...]:
        """Open the parts of all ranks, in their order; a rank whose memory cannot be opened sends them.

        Returns:
            For the user, what could not be opened.

        Raises:
            OSError, RuntimeError: the parts of a rank can be neither opened nor sent.
        """
        notes = []
        for rank, handle in enumerate(handles):
            if rank == self.rank:
                continue
            try:
                self._parts_LB[rank] = open_bytes(handle, device=self._device).view(self._num_layers, -1)
            except (OSError, RuntimeError) as error:
                if handle.sender is None:
                    raise
                self._receivers[rank] = PartReceiver(handle.sender, rank=rank)
                why = " ".join(str(error).split())[:200]
                notes.append(
                    f"warning: rank {self.rank} cannot read the memory of rank {rank} ({why}), so rank {rank} sends "
                    "its parts of the base model, at a few GB/s; strategy: replicas streams layers from host memory"
                )
        return tuple(notes)

    def close(self) -> None:
        """Send no more parts, and ask for none."""
        if self._sender is not None:
            self._sender.close()
        for receiver in self._receivers.values():
            receiver.close()

    @property
    def is_recordable(self) -> bool:
        """Whether copies may be recorded in a CUDA graph: not where a peer sends its parts."""
        return not self._receivers

    def fetch(self, place: int, into: Tensor) -> Ready:
        """Start to copy a layer together. Parts of peers that are not connected stay as they are in the buffer.

        What products read where it is kept is left out.

        So passes that only measure memory may run before there are peers.
        """
        ranks = [(self.rank + ahead) % self.num_ranks for ahead in range(self.num_ranks)]
        parts = [(self._parts_LB[rank][place], rank) for rank in ranks if rank in self._parts_LB]
        # asked for first: they are sent while the others are copied
        sent = [receiver.fetch(place, _part_of(into, rank, self._own_LB)) for rank, receiver in self._receivers.items()]
        copies: list[Ready] = [*sent]
        # each from its next peer first, so that no GPU is read by all at once; a stream for each link
        for number, (part_B, rank) in enumerate(parts):
            pieces = self._pieces(part_B, rank, into)
            if not self._streams or not pieces:
                _copy(pieces)
                continue
            stream = self._streams[number]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                _copy(pieces)
            into.record_stream(stream)
            copies.append(CopyDone(stream))
        return _AllDone(copies) if copies else Complete()

    def _pieces(self, part_B: Tensor, rank: int, into: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the places of a rank's part and what they get; of the own part what is not read in place."""
        first = min(rank * part_B.nbytes, into.nbytes)
        last = min(first + part_B.nbytes, into.nbytes)
        left_out = self._in_place if rank == self.rank else []
        begins, ends = [first, *(end for _, end in left_out)], [*(begin for begin, _ in left_out), last]
        return [
            (into[begin:end], part_B[begin - first : end - first])
            for begin, end in zip(begins, ends, strict=True)
            if end > begin
        ]


class _AllDone:
    def __init__(self, copies: Sequence[Ready]) -> None:
        self._copies = copies

    def wait(self) -> None:
        for copy in self._copies:
            copy.wait()


def _part_of(into: Tensor, rank: int, own_LB: Tensor | None) -> Tensor:
    """Return the place of a rank's part in a layer's buffer."""
    assert own_LB is not None, "parts are kept before they are fetched"
    begin = min(rank * own_LB.shape[1], into.nbytes)
    return into[begin : begin + own_LB.shape[1]]


def _copy(pieces: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, content in pieces:
        target.copy_(content, non_blocking=True)


def shard_bytes(layer_bytes: int, *, num_ranks: int) -> int:
    """Return the bytes of one rank's part of a layer."""
    return -(-layer_bytes // (num_ranks * ALIGNMENT)) * ALIGNMENT


def has_parts(decoder: Decoder) -> bool:
    """Return whether layers of the model are divided over ranks."""
    return decoder.ring is not None and isinstance(decoder.ring.source, PeerSource)


def peer_streaming(layers: Sequence[int], device: torch.device, *, rank: int, num_ranks: int) -> LayerStreaming:
    """Return what the loader of a rank needs to keep its parts of ``layers``."""
    source = PeerSource(device, rank=rank, num_ranks=num_ranks, num_layers=len(layers))
    return LayerStreaming(layers, source=source, device=device)
