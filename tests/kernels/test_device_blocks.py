"""Each thread has memory of its own, and keeps it; blocks of a tensor are all of its bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from cohort.kernels import device_blocks
from cohort.kernels.device_blocks import BUFFER_BYTES, OfThread


def test_a_thread_keeps_its_buffers_and_shares_none() -> None:
    own, both = OfThread(), Barrier(2)

    def addresses() -> tuple[int, int, int]:
        both.wait()
        return own.buffer(0).data_ptr(), own.buffer(1).data_ptr(), own.buffer(0).data_ptr()

    with ThreadPoolExecutor(max_workers=2) as threads:
        one, other = threads.map(lambda _: addresses(), range(2))
    assert one[0] == one[2]
    assert len({one[0], one[1], other[0], other[1]}) == 4
    assert own.buffer(0).numel() == BUFFER_BYTES


def test_without_room_for_pinned_memory_buffers_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def refuse(*size: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("no room")
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    found = OfThread().buffer(0)
    assert (found.numel(), found.is_pinned()) == (BUFFER_BYTES, False)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(), (0, 5), (3, 7), (64, 129)])
def test_blocks_are_the_bytes_of_a_tensor(device: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_blocks, "BUFFER_BYTES", 1000)
    tensor = torch.randn(shape).to(torch.bfloat16)
    found = b"".join(bytes(block) for block in OfThread().blocks(tensor.to(device)))
    assert found == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
