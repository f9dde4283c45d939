"""A few buffers that the weights of all streamed layers pass through, fetched ahead while other layers compute.

Streamed layer number j (its place among the streamed layers) always uses buffer j mod B, so a product's weight never
moves and kernels may keep its address. With G streamed layers a training pass fetches 2 (G - B) times: the forward pass
begins with the B layers that the backward pass before it ended with, and the backward pass with the last B of the
forward pass. The first pass fetches 2 G - B times. Layers are fetched as bytes, so any weight format may be streamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["NUM_BUFFERS", "Complete", "CopyDone", "Ready", "WeightRing", "WeightSource", "spread_layers"]

# one buffer computes while the other is filled: more would hide no more of a copy that is slower than the computation
NUM_BUFFERS = 2


class Ready(Protocol):
    """A copy that was started."""

    def wait(self) -> None:
        """Let what is launched from now on wait until the copy is complete."""
        ...


class WeightSource(Protocol):
    """Where the bytes of streamed layers are kept."""

    @property
    def is_recordable(self) -> bool:
        """Whether the copies that it starts may be recorded in a CUDA graph."""
        ...

    def keep(self, place: int, content: Tensor, *, starts: Sequence[int]) -> None:
        """Keep a copy of a layer's bytes, uint8 [num_bytes] on the device; each layer once, before the first fetch.

        Args:
            starts: Where its tensors begin, ascending; those of all layers.

        Raises:
            InputError: there is no memory for it.
        """
        ...

    def in_place(self, place: int, begin: int, num_bytes: int) -> Tensor | None:
        """Return bytes of a layer that are kept on the device, to be read there; None for bytes that are fetched.

        Fetches of the layer leave out what was returned.
        """
        ...

    def fetch(self, place: int, into: Tensor) -> Ready:
        """Start to copy a layer's bytes into a buffer; what was launched so far still reads what the buffer holds."""
        ...


class WeightRing:
    """Says when a layer's weights are there, and fetches the next ones as soon as a buffer is free.

    Calls may come in any order, as when a pass breaks off: a layer that was not fetched ahead is fetched when needed.

    Attributes:
        source: Where the layers are fetched from.
        layers: The streamed layers by their number in the model, in order.
        num_fetches: Layers fetched so far, those of recorded passes each time that they are replayed.
    """

    def __init__(self, source: WeightSource, *, layers: Sequence[int], buffers: Sequence[Tensor]) -> None:
        """Stream ``layers`` of ``source`` through ``buffers``, each uint8 of the bytes of a layer."""
        self.layers = tuple(layers)
        self.num_fetches = 0
        self.source, self._buffers = source, tuple(buffers)
        self._places = {layer: place for place, layer in enumerate(self.layers)}
        # by buffer: the place of the layer that it holds or that is on its way
        self._held: list[int | None] = [None] * len(self._buffers)
        self._ready: list[Ready | None] = [None] * len(self._buffers)

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def __contains__(self, layer: int) -> bool:
        return layer in self._places

    def need(self, layer: int) -> None:
        """Let what is launched from now on wait until the layer's weights are in their buffer."""
        place = self._places[layer]
        self._fetch(place)
        ready = self._ready[place % len(self._buffers)]
        if ready is not None:
            ready.wait()

    def done(self, layer: int, *, backward: bool, returns: bool = False) -> None:
        """Everything that reads the layer's weights is launched: fetch what its buffer is needed for next.

        Args:
            backward: The pass goes from the last layer to the first.
            returns: A forward pass that a backward pass will follow.
        """
        count, place = len(self._buffers), self._places[layer]
        following = place - count if backward else place + count
        if following < 0 or (returns and following >= len(self.layers)):
            # the pass turns here: the layer is the next one that its buffer is needed for
            return
        self._fetch(following if following < len(self.layers) else place % count)

    def settle(self) -> None:
        """Let what is launched from now on wait until the first layers are in their buffers, where every pass begins.

        A recorded pass begins and ends like that: it neither waits for copies that were started before it, nor leaves
        some under way.
        """
        for buffer in range(len(self._buffers)):
            self._fetch(buffer)
            ready, self._ready[buffer] = self._ready[buffer], None
            if ready is not None:
                ready.wait()

    def forget(self) -> None:
        """Fetch every layer again before it is used: what the source gave until now was not complete."""
        self._held = [None] * len(self._buffers)
        self._ready = [None] * len(self._buffers)

    def _fetch(self, place: int) -> None:
        buffer = place % len(self._buffers)
        if self._held[buffer] == place:
            return
        # unknown until the copy has been started: an error in between must not look like the layer
        self._held[buffer] = None
        self._ready[buffer] = self.source.fetch(place, self._buffers[buffer])
        self._held[buffer] = place
        self.num_fetches += 1


def spread_layers(count: int, *, num_layers: int) -> tuple[int, ...]:
    """Return ``count`` of ``num_layers`` layers evenly spaced: layers between two streamed ones hide their copies."""
    return tuple(int((place + 0.5) * num_layers / count) for place in range(count))


class Complete:
    """A copy that was complete when it was started."""

    def wait(self) -> None:
        """There is nothing to wait for."""


class CopyDone:
    """Copies of another stream of the GPU, ordered by an event."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def wait(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)
