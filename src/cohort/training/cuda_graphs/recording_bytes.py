"""What a recording will take of the device, told by its pass through few layers.

A recording holds the memory of its pass for good. Layers that are alike take as much each, so two passes of filler
through a few of them tell what all take, and the host launches 10 of 32 layers.
"""

from __future__ import annotations

from collections.abc import Collection

from cohort.models.decoder import Decoder
from cohort.training.cuda_graphs.few_layers import are_layers_alike, num_alike_layers

__all__ = ["estimate_depths", "extrapolated_bytes"]

# a first layer and a last one; the last leaves rows out, so it takes less than the others
FEW_LAYERS = 2
# the deeper pass has an eighth of all layers more: what another thread takes meanwhile counts eight times, not thirty
MORE_SHARE = 8
# both passes together have at most half of the layers, or they take the host about as long as a recording
MOST_SHARE = 2


def estimate_depths(decoder: Decoder, *, adapted: Collection[str]) -> tuple[int, int] | None:
    """Return two numbers of first layers whose passes tell what one through all takes; None where they do not.

    Args:
        adapted: As of :func:`~cohort.training.cuda_graphs.few_layers.are_layers_alike`.
    """
    depth, period = len(decoder.layers), num_alike_layers(decoder)
    few = _up(FEW_LAYERS, period)
    more = few + _up(max(1, depth // MORE_SHARE), period)
    if MOST_SHARE * (few + more) > depth or not are_layers_alike(decoder, adapted=adapted):
        return None
    return few, more


def extrapolated_bytes(few: int, more: int, *, share: float) -> int:
    """Return what a pass takes that is as many layers deeper as ``share`` times those between two passes of one size.

    Args:
        few, more: What these two take; no deeper pass takes less.
    """
    return max(few, more, few + round(share * (more - few)))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
