from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.data.order import SampleOrder


@given(num_samples=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 2**40))
def test_every_epoch_visits_every_row_once(num_samples: int, batch_size: int, seed: int) -> None:
    order = SampleOrder(num_samples, seed=seed, batch_size=batch_size)
    for epoch in range(3):
        first = epoch * order.steps_per_epoch
        batches = [order.batch(step) for step in range(first, first + order.steps_per_epoch)]
        assert sorted(index for batch in batches for index in batch) == list(range(num_samples))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert 1 <= len(batches[-1]) <= batch_size


@given(steps=st.lists(st.integers(0, 100), min_size=1, max_size=20), seed=st.integers(0, 9))
def test_any_step_can_be_asked_for_at_any_time(steps: list[int], seed: int) -> None:
    used = SampleOrder(13, seed=seed, batch_size=4)
    assert [used.batch(step) for step in steps] == [SampleOrder(13, seed=seed, batch_size=4).batch(s) for s in steps]


def test_epochs_and_seeds_differ() -> None:
    order = SampleOrder(50, seed=0, batch_size=50)
    assert order.batch(0) != order.batch(1)
    assert order.batch(0) != SampleOrder(50, seed=1, batch_size=50).batch(0)


def test_rows_of_an_epoch_do_not_depend_on_the_batch_size() -> None:
    small, large = SampleOrder(10, seed=3, batch_size=3), SampleOrder(10, seed=3, batch_size=10)
    assert [index for step in range(4) for index in small.batch(step)] == large.batch(0)


def test_the_order_is_pinned() -> None:
    # a resumed run must see the same order under any numpy version, so the numbers themselves are the contract
    assert SampleOrder(8, seed=0, batch_size=8).batch(0) == [2, 5, 0, 4, 6, 7, 1, 3]


@pytest.mark.parametrize(("num_samples", "batch_size"), [(0, 1), (1, 0)])
def test_nothing_to_order_is_an_error(num_samples: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        SampleOrder(num_samples, seed=0, batch_size=batch_size)


def test_a_negative_step_is_an_error() -> None:
    with pytest.raises(ValueError, match="found -1"):
        SampleOrder(3, seed=0, batch_size=1).batch(-1)
