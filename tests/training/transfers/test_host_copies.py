"""Copies arrive whole, whatever their size and type, and from a GPU in the order of what computes them."""

from __future__ import annotations

import pytest
import torch

from cohort.training.transfers import host_copies
from cohort.training.transfers.host_copies import HostCopies

SIZES = [(0,), (1,), (3, 5), (7, 1000)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_copy_is_whole(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    # many parts of few bytes, the last of them short
    monkeypatch.setattr(host_copies, "BUFFER_BYTES", 1024)
    copies = HostCopies()
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        tensors = {str(size): (torch.rand(size, device=device) * 100).to(dtype) for size in SIZES}
        found = copies.start(tensors).result()
        assert list(found) == list(tensors)
        for name, tensor in tensors.items():
            assert found[name].device.type == "cpu"
            assert torch.equal(found[name], tensor.cpu())


def test_large_copies_lie_in_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(host_copies, "use_huge_pages", lambda address, num_bytes: asked.append((address, num_bytes)))
    copy = HostCopies().start({"weights": torch.ones(7, 3)}).result()["weights"]
    assert asked == [(copy.data_ptr(), 7 * 3 * 4)]


@pytest.mark.gpu
def test_a_copy_waits_for_what_computes_it() -> None:
    copies = HostCopies()
    for round_ in range(5):
        slow = torch.full((4096, 4096), 1.0 + round_, device="cuda")
        for _ in range(20):
            slow = slow @ torch.eye(4096, device="cuda")
        started = copies.start({"weights": slow})
        assert torch.equal(started.result()["weights"], torch.full((4096, 4096), 1.0 + round_))
