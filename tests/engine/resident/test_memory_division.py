"""The memory of a device, divided among the uses of one base model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.engine.resident.memory_division import MemoryWishes, divide_memory

GIB = 1 << 30
WHERE = Place(option="command line --queue")
WISHES = MemoryWishes(
    free_bytes=100 * GIB,
    base_bytes=16 * GIB,
    pass_bytes=4 * GIB,
    served_bytes=2 * GIB,
    client_bytes=0,
    cache_bytes=200 * GIB,
    is_cache_asked=False,
    least_cache_bytes=1 << 20,
    row_bytes=32 << 20,
    num_slots=16,
    rank=16,
)


def test_the_bank_has_what_it_wants_and_the_cache_the_rest() -> None:
    budget = divide_memory(WISHES, where=WHERE)
    assert budget.rank_rows == 256
    assert budget.sweep_bytes == 8 * GIB
    # 95 of 100 GiB are divided
    assert budget.cache_bytes == (95 - 16 - 4 - 2 - 8) * GIB
    assert budget.note == (
        "memory: base model 16.0 GiB, passes 4.00 GiB, served adapters 2.00 GiB, keys and values 65.0 GiB, "
        "sweeps 8.00 GiB; together 95.0 GiB of 100 GiB"
    )


def test_each_gets_half_where_both_want_more() -> None:
    budget = divide_memory(replace(WISHES, rank=256), where=WHERE)
    rest = 73 * GIB
    assert budget.cache_bytes == rest // 2
    assert budget.sweep_bytes == (rest // 2) // (16 * WISHES.row_bytes) * 16 * WISHES.row_bytes


def test_a_cache_that_was_asked_for_is_kept() -> None:
    budget = divide_memory(replace(WISHES, rank=256, cache_bytes=70 * GIB, is_cache_asked=True), where=WHERE)
    assert budget.cache_bytes == 70 * GIB
    assert budget.rank_rows == 96


@pytest.mark.parametrize(
    "wishes",
    [
        replace(WISHES, free_bytes=23 * GIB),
        replace(WISHES, cache_bytes=80 * GIB, is_cache_asked=True),
        replace(WISHES, cache_bytes=1 << 19, is_cache_asked=True),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(wishes: MemoryWishes) -> None:
    with pytest.raises(InputError) as caught:
        divide_memory(wishes, where=WHERE)
    text = str(caught.value)
    assert "16.0 GiB (base model) + 4.00 GiB (passes) + 2.00 GiB (served adapters)" in text
    assert "512 MiB (sweeps)" in text
    assert "which the device has free" in text
    assert "--kv-cache-gib" in text
