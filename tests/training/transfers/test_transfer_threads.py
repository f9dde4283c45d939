"""Each thread has memory of its own, and keeps it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from cohort.training.transfers.transfer_threads import BUFFER_BYTES, OfThread, ready_events


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


def test_nothing_is_waited_for_on_the_host() -> None:
    assert ready_events([torch.zeros(3)]) == {}
