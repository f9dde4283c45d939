"""Which layer a ring fetches when; what a pass computes with it is in test_layer_streaming."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from cohort.models.streaming.weight_ring import Complete, Ready, WeightRing, spread_layers


class Fetches:
    """A source that copies a layer's number and notes the order."""

    is_recordable = True

    def __init__(self) -> None:
        self.order: list[int] = []

    def keep(self, place: int, content: Tensor, *, starts: Sequence[int]) -> None:
        raise AssertionError("nothing is kept")

    def in_place(self, place: int, begin: int, num_bytes: int) -> None:
        raise AssertionError("nothing is kept")

    def fetch(self, place: int, into: Tensor) -> Ready:
        into.fill_(place)
        self.order.append(place)
        return Complete()


def ring_of(count: int, *, num_buffers: int) -> tuple[WeightRing, Fetches, list[Tensor]]:
    source = Fetches()
    buffers = [torch.zeros(1, dtype=torch.uint8) for _ in range(num_buffers)]
    # numbers of layers are not their places: every third layer is streamed
    return WeightRing(source, layers=range(0, 3 * count, 3), buffers=buffers), source, buffers


def forward(ring: WeightRing, buffers: list[Tensor], *, returns: bool) -> None:
    for place, layer in enumerate(ring.layers):
        ring.need(layer)
        assert buffers[place % len(buffers)].item() == place
        ring.done(layer, backward=False, returns=returns)


def backward(ring: WeightRing, buffers: list[Tensor]) -> None:
    for place, layer in reversed(list(enumerate(ring.layers))):
        ring.need(layer)
        assert buffers[place % len(buffers)].item() == place
        ring.done(layer, backward=True)


@pytest.mark.parametrize(("count", "num_buffers"), [(7, 2), (5, 2), (7, 3), (5, 3), (3, 2)])
def test_training_passes_fetch_as_few_layers_as_the_buffers_allow(count: int, num_buffers: int) -> None:
    ring, _, buffers = ring_of(count, num_buffers=num_buffers)
    fetches = []
    for _ in range(3):
        before = ring.num_fetches
        forward(ring, buffers, returns=True)
        backward(ring, buffers)
        fetches.append(ring.num_fetches - before)
    assert fetches == [2 * count - num_buffers, 2 * (count - num_buffers), 2 * (count - num_buffers)]


def test_layers_are_fetched_as_soon_as_a_buffer_is_free() -> None:
    ring, source, buffers = ring_of(4, num_buffers=2)
    ring.need(0)
    ring.done(0, backward=False)
    assert source.order == [0, 2], "the layer after the next is on its way while the next one computes"
    forward(ring, buffers, returns=False)
    fetched = len(source.order)
    assert sorted(buffer.item() for buffer in buffers) == [0, 1], (
        "an evaluation ends with what the next pass begins with"
    )
    forward(ring, buffers, returns=False)
    assert len(source.order) == fetched + 4


def test_a_pass_that_broke_off_leaves_nothing_to_repair() -> None:
    ring, _, buffers = ring_of(5, num_buffers=2)
    forward(ring, buffers, returns=True)
    ring.need(12)
    ring.done(12, backward=True)
    # the backward pass ended here
    forward(ring, buffers, returns=True)
    backward(ring, buffers)
    assert 6 in ring
    assert 7 not in ring


def test_a_settled_ring_holds_what_every_pass_begins_with() -> None:
    ring, source, buffers = ring_of(5, num_buffers=2)
    ring.settle()
    assert source.order == [0, 1]
    forward(ring, buffers, returns=True)
    backward(ring, buffers)
    fetched = len(source.order)
    # after a whole pass there is nothing to fetch; after one that broke off there is
    ring.settle()
    assert len(source.order) == fetched
    forward(ring, buffers, returns=True)
    ring.settle()
    assert [buffer.item() for buffer in buffers] == [0, 1]


def test_a_fetch_that_fails_is_made_again() -> None:
    ring, source, buffers = ring_of(3, num_buffers=2)
    fetch = source.fetch

    def failing(place: int, into: Tensor) -> Ready:
        raise RuntimeError("a lost link")

    source.fetch = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a lost link"):
        ring.need(0)
    source.fetch = fetch  # type: ignore[method-assign]
    forward(ring, buffers, returns=False)


def test_streamed_layers_are_spread_evenly() -> None:
    assert spread_layers(4, num_layers=4) == (0, 1, 2, 3)
    assert spread_layers(3, num_layers=12) == (2, 6, 10)
    spread = spread_layers(23, num_layers=80)
    gaps = {after - before for before, after in itertools.pairwise(spread)}
    assert len(set(spread)) == 23
    assert gaps <= {3, 4}
