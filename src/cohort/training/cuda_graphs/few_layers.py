"""A decoder with few of its layers, while a pass through all of them would tell no more.

One layer of each kind launches every kernel. And where layers are alike, what a pass takes grows by as much with each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Hashable, Iterator, Sequence

from cohort.adapters.layout import AdapterLayout
from cohort.models.decoder import Decoder
from cohort.models.decoder_layer import DecoderLayer

__all__ = ["all_rows", "are_layers_alike", "few_layers", "first_layers", "num_alike_layers", "one_layer_each"]

# kernels are compiled for operands that begin at a multiple of 16 bytes, and again for those that do not: factors of
# 16 or 32 bits that begin at a multiple of this many columns do
ALIGNED_COLUMNS = 8


@contextlib.contextmanager
def few_layers(decoder: Decoder, *, layout: AdapterLayout) -> Iterator[None]:
    """Leave the decoder its first layer and one more of each kind.

    The others launch the same kernels: they have the window of one that is left, its kind of feed-forward block, and
    where their factors begin in a bank of ``layout`` is as aligned. Only widths that are no multiples of 8, as small
    models have, set layers apart by that.
    """
    kinds = _kinds_by_place(decoder, layout)
    places = {0, *_last_of_each(kinds, first=1)}
    if decoder.grouped_leaves_out_rows and kinds[0] != kinds[-1]:
        # the last layer computes fewer rows, so another of its kind stays for the kernels of all rows
        places |= {place for place in _last_of_each(kinds[:-1], first=1) if kinds[place] == kinds[-1]}
    with _kept(decoder, sorted(places)):
        yield


@contextlib.contextmanager
def one_layer_each(decoder: Decoder, *, layout: AdapterLayout) -> Iterator[None]:
    """Leave the decoder one layer of each kind, as :func:`few_layers` tells them apart.

    Such a pass launches all kernels whose tiles follow from its rows. What the first layer alone has, or the second
    after it, are norms that add nothing, or the first layer's output.
    """
    with _kept(decoder, sorted(_last_of_each(_kinds_by_place(decoder, layout), first=0))):
        yield


@contextlib.contextmanager
def all_rows(decoder: Decoder) -> Iterator[None]:
    """Let the last layer compute all rows, so that it launches what another one of its kind does."""
    before, decoder.computes_all_rows = decoder.computes_all_rows, True
    try:
        yield
    finally:
        decoder.computes_all_rows = before


def _kinds_by_place(decoder: Decoder, layout: AdapterLayout) -> list[Hashable]:
    """Return of each layer what tells its kernels from those of others."""
    kinds = zip(_kinds(decoder), decoder.layers, strict=True)
    return [(kind, _alignments(layer, layout)) for kind, layer in kinds]


def _last_of_each(kinds: Sequence[Hashable], *, first: int) -> Collection[int]:
    """Return the place of the last layer of each kind, of those from ``first`` on."""
    return {kinds[place]: place for place in range(first, len(kinds))}.values()


@contextlib.contextmanager
def first_layers(decoder: Decoder, count: int) -> Iterator[None]:
    """Leave the decoder its first ``count`` layers."""
    with _kept(decoder, range(count)):
        yield


def num_alike_layers(decoder: Decoder) -> int:
    """Return after how many layers their kinds repeat; the number of all layers where they do not."""
    kinds = _kinds(decoder)
    periods = range(1, len(kinds))
    return next((count for count in periods if kinds[count:] == kinds[:-count]), len(kinds))


def _kinds(decoder: Decoder) -> list[tuple[int | None, bool]]:
    """Return of each layer its window, and whether it has experts."""
    return [(decoder.config.windows[layer], decoder.config.is_sparse(layer)) for layer in decoder.part]


@contextlib.contextmanager
def _kept(decoder: Decoder, places: Sequence[int]) -> Iterator[None]:
    layers, part = decoder.layers, decoder.part
    decoder.layers, decoder.part = tuple(layers[place] for place in places), [part[place] for place in places]
    try:
        yield
    finally:
        decoder.layers, decoder.part = layers, part


def _alignments(layer: DecoderLayer, layout: AdapterLayout) -> tuple[bool, ...]:
    """Return of each factor of a layer whether it begins at an aligned column."""
    names = (*(part.name for linear in layer.linears for part in linear.parts), *layer.first_experts)
    places = (layout.columns[name] for name in names if name in layout.columns)
    return tuple(factor.start % ALIGNED_COLUMNS == 0 for place in places for factor in (place.a, place.b))


def are_layers_alike(decoder: Decoder, *, adapted: Collection[str]) -> bool:
    """Return whether layers differ in nothing but their window: all lie on the device, adapted and stored alike.

    Args:
        adapted: Full paths of the linears that have an adapter, and of experts that have one.
    """
    if decoder.ring is not None:
        return False
    kinds = {
        (
            tuple(
                (type(linear.frozen), tuple(part.name in adapted for part in linear.parts)) for linear in layer.linears
            ),
            tuple(name in adapted for name in layer.first_experts),
        )
        for layer in decoder.layers
    }
    return len(kinds) == 1
