"""Streamed layers divided over the ranks: each keeps one part of every layer and copies the others' parts when needed.

Adapter parallelism (ALTO 6.2) gathers frozen shards collectively, so all ranks go through the layers together. Frozen
shards are only read, so here a rank copies them from its peers by itself (CUDA IPC; shared memory on a CPU): ranks run
passes of any number and size, none waits for another, and a rank without trials costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from cohort.models.decoder import Decoder
from cohort.models.streaming.layer_streaming import ALIGNMENT, LayerStreaming
from cohort.models.streaming.weight_ring import Complete, CopyDone, Ready
from cohort.ranks.sent_parts import PartReceiver, PartSender
from cohort.ranks.shared_bytes import BytesHandle, open_bytes, share_bytes

__all__ = ["PeerSource", "has_parts", "peer_streaming", "shard_bytes"]

# a part of whole tensors in equal ones: while ranks copy the larger, the layer before it computes
MOST_UNEVEN = 1.15


class PeerSource:
    """One rank's parts of all streamed layers, and those of its peers once they are connected."""

    def __init__(self, device: torch.device, *, rank: int, num_ranks: int, num_layers: int) -> None:
        """Keep a part of each of ``num_layers`` streamed layers, one of ``num_ranks``."""
        self.rank, self.num_ranks = rank, num_ranks
        self._device, self._num_layers = device, num_layers
        self._division: _Division | None = None
        self._handle: BytesHandle | None = None
        # by layer, of the own part: (begin, end) of the bytes that products read where they are, in order
        self._in_place: dict[int, list[tuple[int, int]]] = {}
        # by rank, the parts of all layers one behind the other
        self._kept: dict[int, Tensor] = {}
        # of peers whose memory cannot be opened
        self._receivers: dict[int, PartReceiver] = {}
        self._sender: PartSender | None = None
        self._streams = [torch.cuda.Stream(device) for _ in range(num_ranks)] if device.type == "cuda" else []

    def keep(self, place: int, content: Tensor, *, starts: Sequence[int]) -> None:
        if self._division is None:
            self._division = _Division.of(content.nbytes, starts=starts, num_ranks=self.num_ranks)
            num_bytes = self._division.begin_of(self.rank, self._num_layers)
            self._kept[self.rank], self._handle = share_bytes(num_bytes, device=self._device)
        begin, end = self._division.range_of(self.rank, place)
        self._part(self.rank, place)[: end - begin].copy_(content[begin:end])

    def in_place(self, place: int, begin: int, num_bytes: int) -> Tensor | None:
        """Return bytes that lie whole in this rank's part."""
        assert self._division is not None, "parts are kept before they are read"
        first, last = self._division.range_of(self.rank, place)
        if begin < first or begin + num_bytes > last:
            return None
        own = self._in_place.setdefault(place, [])
        # with the bytes behind it, which belong to no tensor
        own.append((begin, begin + -(-num_bytes // ALIGNMENT) * ALIGNMENT))
        own.sort()
        return self._part(self.rank, place)[begin - first : begin - first + num_bytes]

    @property
    def handle(self) -> BytesHandle:
        """With it, peers open this rank's parts; all of them have been kept."""
        assert self._handle is not None, "the layers are kept before they are shared"
        if self._sender is None:
            self._sender = PartSender([self._part(self.rank, place) for place in range(self._num_layers)])
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
                self._kept[rank] = open_bytes(handle, device=self._device)
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
        assert self._division is not None, "the layers are kept before they are fetched"
        ranks = [(self.rank + ahead) % self.num_ranks for ahead in range(self.num_ranks)]
        # asked for first: they are sent while the others are copied
        sent = [
            receiver.fetch(place, into[slice(*self._division.range_of(rank, place))])
            for rank, receiver in self._receivers.items()
        ]
        copies: list[Ready] = [*sent]
        # each from its next peer first, so that no GPU is read by all at once; a stream for each link
        for number, rank in enumerate(rank for rank in ranks if rank in self._kept):
            pieces = self._pieces(rank, place, into)
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

    def _part(self, rank: int, place: int) -> Tensor:
        """Return a rank's part of a layer, of those that are open here."""
        assert self._division is not None, "parts are kept before they are read"
        return self._kept[rank][self._division.begin_of(rank, place) : self._division.begin_of(rank, place + 1)]

    def _pieces(self, rank: int, place: int, into: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the places of a rank's part and what they get; of the own part what is not read in place."""
        assert self._division is not None, "parts are kept before they are fetched"
        part_B, (first, last) = self._part(rank, place), self._division.range_of(rank, place)
        left_out = self._in_place.get(place, []) if rank == self.rank else []
        begins, ends = [first, *(end for _, end in left_out)], [*(begin for begin, _ in left_out), last]
        return [
            (into[begin:end], part_B[begin - first : end - first])
            for begin, end in zip(begins, ends, strict=True)
            if end > begin
        ]


@dataclass(frozen=True, kw_only=True)
class _Division:
    """How a layer is divided: all layers alike, but for which rank has which part.

    Attributes:
        cuts: Where parts begin, and the bytes of a layer behind them.
        takes_turns: Whether the ranks have the parts in turn, layer by layer: parts of whole tensors differ in size.
        stride: Bytes that are kept for a part; None for as many as it has.
    """

    cuts: tuple[int, ...]
    takes_turns: bool
    stride: int | None

    @classmethod
    def of(cls, num_bytes: int, *, starts: Sequence[int], num_ranks: int) -> _Division:
        """Return parts of whole tensors where these are nearly as large as equal ones, else parts of equal size.

        What a rank keeps whole its products read in place. The rest of its own part is copied into each layer's buffer,
        by the multiprocessors: a tenth of a pass of 1,000 tokens, measured on two H200.
        """
        stride = shard_bytes(num_bytes, num_ranks=num_ranks)
        equal = [rank * num_bytes / num_ranks for rank in range(num_ranks)]
        cuts = (*(min((abs(start - at), start) for start in starts)[1] for at in equal), num_bytes)
        is_even = max(end - begin for begin, end in pairwise(cuts)) <= MOST_UNEVEN * num_bytes / num_ranks
        # in turn, so that what parts lack of an alignment would add up
        if is_even and num_bytes % ALIGNMENT == 0:
            return cls(cuts=cuts, takes_turns=True, stride=None)
        cuts = tuple(min(rank * stride, num_bytes) for rank in range(num_ranks + 1))
        return cls(cuts=cuts, takes_turns=False, stride=stride)

    def range_of(self, rank: int, place: int) -> tuple[int, int]:
        """Return where a rank's part of a layer begins and ends in the layer."""
        part = (rank + place) % (len(self.cuts) - 1) if self.takes_turns else rank
        return self.cuts[part], self.cuts[part + 1]

    def begin_of(self, rank: int, place: int) -> int:
        """Return where a rank's part of a layer begins in what the rank keeps."""
        if self.stride is not None:
            return place * self.stride
        sizes = [end - begin for begin, end in pairwise(self.cuts)]
        rounds, rest = divmod(place, len(sizes))
        return rounds * sum(sizes) + sum(sizes[(rank + layer) % len(sizes)] for layer in range(rest))


class _AllDone:
    def __init__(self, copies: Sequence[Ready]) -> None:
        self._copies = copies

    def wait(self) -> None:
        for copy in self._copies:
            copy.wait()


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
