"""Device memory: what a pass takes, which passes are measured, and which errors mean that memory ran out."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import MemoryLimitError
from cohort.core.memory_records import PassKind, PassSize
from cohort.training.device_memory import (
    DeviceMemory,
    StorageMeter,
    copied_where_there_is_room,
    is_out_of_memory,
)

KIB = 1 << 10


def kibibytes(count: int) -> torch.Tensor:
    return torch.empty(count * KIB, dtype=torch.uint8)


def size_of(num_rows: int) -> PassSize:
    return PassSize(num_rows=num_rows, num_trained=1, rank_entries=0, head_bytes=0, num_sequences=1, sum_squares=1)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(), True),
        (MemoryLimitError("limit"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_meter_counts_storage_until_it_is_freed() -> None:
    meter = StorageMeter()
    with meter:
        kept = kibibytes(3)
        view = kept[:10].view(2, 5)
        kept.add_(1)
        dropped = kibibytes(4)
        del dropped
        assert meter.live_bytes == 3 * KIB, "views and in-place operations make no storage"
        assert meter.peak_bytes == 7 * KIB
        meter.reset_peak()
        assert meter.peak_bytes == 3 * KIB
    del kept
    assert meter.live_bytes == 3 * KIB, "a view holds the storage"
    del view
    assert meter.live_bytes == 0, "also after the meter was left"


def test_the_meter_raises_beyond_the_limit() -> None:
    meter = StorageMeter(limit_bytes=10 * KIB, base_bytes=6 * KIB)
    with meter:
        first = kibibytes(3)
        with pytest.raises(MemoryLimitError, match=r"2\.00 KiB more make 11\.0 KiB in use, above .* 10\.0 KiB"):
            kibibytes(2)
        assert meter.live_bytes == 3 * KIB
    del first


def test_a_training_pass_has_a_peak_of_each_half_and_an_evaluation_has_one() -> None:
    memory = DeviceMemory("cpu", limit_bytes=1 << 30)
    before = kibibytes(100)
    with memory.observe(PassKind.TRAIN, size_of(16)) as observed:
        forward = kibibytes(2)
        observed.forward_done()
        backward = kibibytes(5)
        del backward
    with memory.observe(PassKind.EVALUATE, size_of(8)):
        kibibytes(3)
    train, evaluate = memory.take_peaks()
    assert (train.size.num_rows, train.forward_bytes, train.backward_bytes) == (16, 2 * KIB, 7 * KIB)
    assert (evaluate.kind, evaluate.forward_bytes, evaluate.backward_bytes) == (PassKind.EVALUATE, 3 * KIB, 0)
    assert memory.highest_bytes == 7 * KIB
    assert not memory.take_peaks()
    del before, forward


def test_a_pass_that_raises_or_has_no_size_leaves_no_record() -> None:
    memory = DeviceMemory("cpu", limit_bytes=4 * KIB)
    with pytest.raises(MemoryLimitError), memory.observe(PassKind.TRAIN, size_of(16)):
        kibibytes(5)
    with memory.observe(PassKind.EVALUATE, None):
        kibibytes(1)
    assert not memory.take_peaks()


def test_after_the_first_passes_every_16th_is_measured_and_every_larger_one() -> None:
    memory = DeviceMemory("cpu", limit_bytes=1 << 30)

    def num_measured(count: int, *, num_rows: int) -> int:
        for _ in range(count):
            with memory.observe(PassKind.EVALUATE, size_of(num_rows)):
                pass
        return len(memory.take_peaks())

    assert num_measured(32, num_rows=16) == 32
    assert num_measured(32, num_rows=16) == 2
    assert num_measured(1, num_rows=17) == 1
    assert num_measured(1, num_rows=17) == 0
    memory.observe_next(3)
    assert num_measured(5, num_rows=16) == 3


def test_a_cpu_without_a_limit_measures_nothing() -> None:
    memory = DeviceMemory("cpu")
    assert not memory.can_observe
    with memory.observe(PassKind.TRAIN, size_of(16)) as observed:
        observed.forward_done()
    assert not memory.take_peaks()


def test_a_copy_that_finds_no_room_on_the_device_is_made_on_the_host() -> None:
    def copy(on_device: bool) -> str:
        if on_device:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "host"

    assert copied_where_there_is_room(copy, on_device=True) == "host"
    assert copied_where_there_is_room(lambda there: there, on_device=True)
    assert not copied_where_there_is_room(lambda there: there, on_device=False)

    def broken(on_device: bool) -> str:
        raise RuntimeError("another error")

    with pytest.raises(RuntimeError, match="another"):
        copied_where_there_is_room(broken, on_device=True)
