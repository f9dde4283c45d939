"""Takes the weights of streamed layers out of their products while a checkpoint is loaded, one layer at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.kernels.packed_linear import FrozenProduct
from cohort.kernels.packed_linear.frozen_product import can_stream
from cohort.models.streaming.weight_ring import NUM_BUFFERS, WeightRing, WeightSource

__all__ = ["ALIGNMENT", "LayerStreaming"]

# of each tensor in a buffer: what kernels and tensor memory descriptors ask for, with room to spare
ALIGNMENT = 256


class LayerStreaming:
    """Fills a source with the weights of some layers and builds the ring that fetches them.

    Attributes:
        layers: The streamed layers by number, in order.
    """

    def __init__(self, layers: Sequence[int], *, source: WeightSource, device: torch.device) -> None:
        """Stream ``layers`` from ``source``; there must be more of them than buffers, or nothing would be saved."""
        if len(layers) <= NUM_BUFFERS:
            raise ValueError(f"streaming {len(layers)} layers through {NUM_BUFFERS} buffers saves no memory")
        self.layers = tuple(layers)
        self._source, self._device = source, device
        self._buffers: tuple[Tensor, ...] = ()

    def take(self, layer: int, products: Mapping[str, FrozenProduct]) -> None:
        """Keep the weights of a loaded layer in the source; from now on its products read a buffer.

        Weights that the source keeps whole on the device are read where they are.

        Raises:
            InputError: a weight format that cannot be streamed, or no memory for the layer.
        """
        if layer not in self.layers:
            return
        streamed = []
        for name, product in products.items():
            if not can_stream(product):
                raise InputError(_not_streamable(name))
            streamed.append(product)
        tensors = [tensor for product in streamed for tensor in product.streamed_weights]
        starts, num_bytes = _laid_out(tensors)
        if not self._buffers:
            # zeros: the bytes between tensors are copied as well, and must not depend on what was there
            self._buffers = tuple(
                torch.zeros(num_bytes, dtype=torch.uint8, device=self._device) for _ in range(NUM_BUFFERS)
            )
        buffer = self._buffers[(place := self.layers.index(layer)) % NUM_BUFFERS]
        assert buffer.nbytes == num_bytes, "the layers of a decoder are alike"
        for start, tensor in zip(starts, tensors, strict=True):
            _like(buffer[start : start + tensor.nbytes], tensor).copy_(tensor)
        self._source.keep(place, buffer, starts=sorted(starts))
        views = iter([self._view(place, start, tensor, buffer) for start, tensor in zip(starts, tensors, strict=True)])
        for product in streamed:
            product.place_weights([next(views) for _ in product.streamed_weights])

    def _view(self, place: int, start: int, tensor: Tensor, buffer: Tensor) -> Tensor:
        """Return where a product reads a tensor of a layer."""
        kept = self._source.in_place(place, start, tensor.nbytes)
        return _like(buffer[start : start + tensor.nbytes] if kept is None else kept, tensor)

    def ring(self) -> WeightRing:
        """Return the ring over the layers, all of which were taken."""
        return WeightRing(self._source, layers=self.layers, buffers=self._buffers)


def _like(content: Tensor, tensor: Tensor) -> Tensor:
    """Return bytes as a tensor of the type and shape of another."""
    return content.view(tensor.dtype).view(tensor.shape)


def _laid_out(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """Return where each tensor begins in a buffer, and the buffer's bytes.

    The largest come first, so that the parts of two ranks can be whole tensors.
    """
    starts, end = [0] * len(tensors), 0
    for index in sorted(range(len(tensors)), key=lambda index: -tensors[index].nbytes):
        starts[index] = end
        end += -(-tensors[index].nbytes // ALIGNMENT) * ALIGNMENT
    return starts, end


def _not_streamable(name: str) -> Problem:
    return Problem(
        where=Place(key=("memory", "host_streamed_layers")),
        found=f"streamed layers, and {name} in a format of weights that stays on the GPU",
        allowed="streamed layers with quantization: none, fp8, int8 or nf4",
        hint="Write host_streamed_layers: 0, or another quantization.",
    )
