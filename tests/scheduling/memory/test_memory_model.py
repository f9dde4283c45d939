"""Bytes by hand, and the search for the largest pass."""

from __future__ import annotations

import pytest

from cohort.scheduling.memory.memory_model import (
    AdaptedLinear,
    AdapterSharding,
    Sharding,
    StatePrecision,
    adapter_state_bytes,
    base_shard_bytes,
    largest_that_fits,
)

COLUMN = AdaptedLinear(in_features=64, out_features=128)
ROW = AdaptedLinear(in_features=128, out_features=64, is_row_parallel=True)


def state(linear: AdaptedLinear, **how: object) -> int:
    return adapter_state_bytes([linear], r=8, num_layers=4, sharding=Sharding(**how))  # type: ignore[arg-type]


def test_each_array_is_counted_once() -> None:
    entries = 8 * (64 + 128) * 4
    assert state(COLUMN) == entries * (4 + 4 + 2 * 4)
    mixed = StatePrecision(weight=2, gradient=2, moment=4, master=4)
    assert adapter_state_bytes([COLUMN], r=8, num_layers=4, precision=mixed) == entries * (2 + 2 + 8 + 4)


@pytest.mark.parametrize("linear", [COLUMN, ROW])
def test_tensor_parallelism_divides_only_sharded_factors(linear: AdaptedLinear) -> None:
    # both have the whole side 64 and the sharded side 128
    def entries(scheme: AdapterSharding) -> int:
        return state(linear, tensor=4, scheme=scheme) // 16 // 4

    assert entries(AdapterSharding.MEGATRON) == 8 * 64 + 8 * 32
    assert entries(AdapterSharding.S_LORA) == 2 * 64 + 8 * 32
    assert entries(AdapterSharding.BLOCK_DIAGONAL) == 2 * 64 + 2 * 32


def test_what_the_other_axes_divide() -> None:
    whole = state(COLUMN)
    assert state(COLUMN, pipeline=3) == whole // 4 * 2, "the fullest of 3 stages has 2 of 4 layers"
    assert state(COLUMN, adapter=8) == whole, "a trial's state stays whole on its GPU"
    assert state(COLUMN, zero_stage=1, data=4) == whole // 16 * (2 + 4 + 4)
    assert state(COLUMN, zero_stage=2, data=4) == whole // 16 * (2 + 1 + 4)
    assert state(COLUMN, zero_stage=3, data=4) == whole // 16 * (2 + 1 + 1)
    assert base_shard_bytes(1000, sharding=Sharding(tensor=2, adapter=5)) == 100
    assert base_shard_bytes(1000, sharding=Sharding(zero_stage=2, data=4)) == 1000
    assert base_shard_bytes(1000, sharding=Sharding(zero_stage=3, data=4)) == 250


def test_wrong_degrees_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Sharding(tensor=0)
    with pytest.raises(ValueError, match="zero_stage"):
        Sharding(zero_stage=4)


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 64, 99, 100, 1000])
def test_the_largest_that_fits(limit: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    assert largest_that_fits(fits, at_most=100) == min(limit, 100)
    assert all(1 <= size <= 100 for size in asked)
    assert sum(size > limit for size in asked) <= 8, "each failure is a real out-of-memory error"
