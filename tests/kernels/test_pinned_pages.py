"""Memory is pinned where it lies until its owner says so, or another one once the owner is gone."""

from __future__ import annotations

import gc

import pytest
import torch

from cohort.kernels import pinned_pages
from cohort.kernels.pinned_pages import PinnedPages


class Runtime:
    """A CUDA runtime that notes what is pinned."""

    def __init__(self, *, refused: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.calls: list[str] = []
        self.refused = refused

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        assert flags == 0
        if address == self.refused:
            return 712
        self.pinned[address] = num_bytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        assert self.calls[-1] == "synchronize", "copies may be under way"
        del self.pinned[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.calls.append("synchronize"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    monkeypatch.setattr(pinned_pages, "_of_gone_owners", [])
    return found


def test_what_is_not_kept_is_unpinned(runtime: Runtime) -> None:
    pages, first, second = PinnedPages(), torch.arange(6.0), torch.arange(3)
    assert pages.pin(first) is first
    assert pages.pin(second) is second
    assert runtime.pinned == {first.data_ptr(): 24, second.data_ptr(): 24}
    pages.keep_only(lambda: [first, second, torch.arange(2)])
    assert not runtime.calls, "nothing to wait for"
    pages.keep_only(lambda: [second])
    assert runtime.pinned == {second.data_ptr(): 24}
    pages.keep_only(list)
    assert not runtime.pinned


def test_memory_that_cannot_be_pinned_where_it_lies_is_copied(runtime: Runtime) -> None:
    pages, host = PinnedPages(), torch.arange(6.0)
    runtime.refused = host.data_ptr()
    elsewhere = pages.pin(host)
    assert elsewhere is not host
    assert torch.equal(elsewhere, host)
    pages.keep_only(list)
    assert not runtime.calls


def test_what_is_pinned_meanwhile_or_could_not_be_waited_for_stays(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, first, second = PinnedPages(), torch.arange(6.0), torch.arange(3)
    pages.pin(first)

    def nothing() -> list[torch.Tensor]:
        # as another thread may
        pages.pin(second)
        return []

    pages.keep_only(nothing)
    assert runtime.pinned == {second.data_ptr(): 24}

    def fail() -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(RuntimeError, match="illegal"):
        pages.keep_only(list)
    assert pages._tensors[0] is second


def test_memory_stays_pinned_and_there_until_the_next_owner_comes(runtime: Runtime) -> None:
    pages, host = PinnedPages(), torch.arange(6.0)
    address = pages.pin(host).data_ptr()
    del pages, host
    gc.collect()
    # the last reference may be dropped in the middle of a recording, which no wait may interrupt
    assert runtime.pinned == {address: 24}
    assert not runtime.calls
    later = PinnedPages()
    later.keep_only(list)
    assert not runtime.pinned
    assert runtime.calls == ["synchronize"]


@pytest.mark.gpu
def test_a_gpu_copies_from_it_unwaited() -> None:
    pages, host = PinnedPages(), torch.randn(1 << 20, 33)
    assert not host.is_pinned()
    assert pages.pin(host) is host
    assert host.is_pinned()
    arrived = host.to("cuda", non_blocking=True)
    pages.keep_only(list)
    assert not host.is_pinned()
    assert torch.equal(arrived.cpu(), host)
