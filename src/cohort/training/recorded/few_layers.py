"""A decoder with one layer of each kind: a pass through it launches every kernel of a pass through all layers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from cohort.models.decoder import Decoder

__all__ = ["are_layers_alike", "few_layers"]


@contextlib.contextmanager
def few_layers(decoder: Decoder) -> Iterator[None]:
    """Leave the decoder its first layer, whose input needs no gradient, and one more of each kind.

    The others launch the same kernels.
    """
    layers, part, windows = decoder.layers, decoder.part, decoder.config.windows
    # the last of each window, and the first layer of all
    kept = sorted({0, *{windows[layer]: place for place, layer in enumerate(part) if place}.values()})
    decoder.layers, decoder.part = tuple(layers[place] for place in kept), [part[place] for place in kept]
    try:
        yield
    finally:
        decoder.layers, decoder.part = layers, part


def are_layers_alike(decoder: Decoder, *, adapted: Collection[str]) -> bool:
    """Return whether layers differ in nothing but their window: all lie on the device, adapted and stored alike.

    Args:
        adapted: Full paths of the linears that have an adapter.
    """
    if decoder.ring is not None:
        return False
    kinds = {
        tuple((type(linear.frozen), tuple(part.name in adapted for part in linear.parts)) for linear in layer.linears)
        for layer in decoder.layers
    }
    return len(kinds) == 1
