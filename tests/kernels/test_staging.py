"""Host arrays arrive as they were; on a CPU each has memory of its own."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cohort.kernels.staging import lists_unwaited, pinned, pinned_in_place, stage_together, to_device_unwaited

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


@pytest.mark.gpu
def test_memory_is_pinned_where_it_lies_for_as_long_as_its_tensor_is_there() -> None:
    host = torch.randn(1 << 20, 33)
    expected, address = host.clone(), host.data_ptr()
    held = pinned_in_place(host)
    assert held is host
    assert host.is_pinned()
    arrived = host.to("cuda", non_blocking=True)
    view = host[1:]
    del host, held
    gc.collect()
    # what was on its way has arrived, and what is left of it is memory as before
    assert torch.equal(arrived.cpu(), expected)
    assert torch.equal(view, expected[1:])
    assert view.data_ptr() > address
    assert not view.is_pinned()


def test_memory_that_cannot_be_pinned_where_it_lies_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, host = list[tuple[str, int]](), torch.arange(6.0)
    there = host.data_ptr()

    def register(address: int, num_bytes: int, _: int) -> int:
        calls.append(("register", num_bytes))
        return 0 if address == there else 1

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda at: calls.append(("unregister", at)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append(("synchronize", 0)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    other = torch.arange(3.0)
    elsewhere = pinned_in_place(other)
    assert elsewhere is not other
    assert torch.equal(elsewhere, other)
    held = pinned_in_place(host)
    assert held is host
    assert calls == [("register", 12), ("register", 24)]
    del held, host
    gc.collect()
    assert calls[2:] == [("synchronize", 0), ("unregister", there)]


def test_on_a_cpu_no_two_share_memory() -> None:
    first, _, last = stage_together(ARRAYS, "cpu")
    assert first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr()
