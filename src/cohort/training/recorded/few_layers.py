"""A decoder with few of its layers, while a pass through all of them would tell no more.

One layer of each kind launches every kernel. And where layers are alike, what a pass takes grows by as much with each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

from cohort.models.decoder import Decoder

__all__ = ["are_layers_alike", "few_layers", "first_layers", "num_alike_layers"]


@contextlib.contextmanager
def few_layers(decoder: Decoder) -> Iterator[None]:
    """Leave the decoder its first layer, whose input needs no gradient, and one more of each kind.

    The others launch the same kernels.
    """
    windows = decoder.config.windows
    # the last of each window, and the first layer of all
    last = {windows[layer]: place for place, layer in enumerate(decoder.part) if place}
    with _kept(decoder, sorted({0, *last.values()})):
        yield


@contextlib.contextmanager
def first_layers(decoder: Decoder, count: int) -> Iterator[None]:
    """Leave the decoder its first ``count`` layers."""
    with _kept(decoder, range(count)):
        yield


def num_alike_layers(decoder: Decoder) -> int:
    """Return after how many layers their windows repeat; the number of all layers where they do not."""
    windows = [decoder.config.windows[layer] for layer in decoder.part]
    periods = range(1, len(windows))
    return next((count for count in periods if windows[count:] == windows[:-count]), len(windows))


@contextlib.contextmanager
def _kept(decoder: Decoder, places: Sequence[int]) -> Iterator[None]:
    layers, part = decoder.layers, decoder.part
    decoder.layers, decoder.part = tuple(layers[place] for place in places), [part[place] for place in places]
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
