"""Host arrays arrive as they were; on a CPU each has memory of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cohort.kernels.staging import lists_unwaited, pinned, stage_together, to_device_unwaited

ARRAYS = [np.arange(5), np.zeros(0, dtype=np.int64), np.array([7, -3])]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_arrays_arrive_in_order(device: str) -> None:
    staged = stage_together(ARRAYS, device)
    assert [tensor.tolist() for tensor in staged] == [array.tolist() for array in ARRAYS]
    assert all(tensor.dtype == torch.int64 and tensor.device.type == device for tensor in staged)
    assert to_device_unwaited(ARRAYS[0], device).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_numbers_come_back_as_they_were_when_they_were_asked_for(device: str) -> None:
    halves, empty = torch.tensor([0.5, -1.0, float("inf")], device=device), torch.zeros(0, device=device)
    numbers = lists_unwaited([halves, empty])
    # what is launched later changes nothing
    halves = halves * 2
    assert numbers() == [[0.5, -1.0, float("inf")], []]


def test_without_room_for_pinned_memory_the_transfer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: OS call failed or operation not supported on this OS")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    host = torch.arange(3)
    assert pinned(host) is host


def test_on_a_cpu_no_two_share_memory() -> None:
    first, _, last = stage_together(ARRAYS, "cpu")
    assert first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr()
