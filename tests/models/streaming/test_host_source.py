"""Layers kept in host memory, in blocks."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import InputError
from cohort.models.streaming import host_source
from cohort.models.streaming.host_source import HostSource


def test_what_was_kept_is_fetched_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_source, "BLOCK_BYTES", 64)
    source = HostSource(torch.device("cpu"))
    layers = [torch.randint(0, 255, (150,), dtype=torch.uint8) for _ in range(3)]
    for place, layer in enumerate(layers):
        source.keep(place, layer, starts=(0,))
    assert source.num_bytes == 450
    buffer = torch.empty(150, dtype=torch.uint8)
    for place in (2, 0, 1):
        source.fetch(place, buffer).wait()
        assert torch.equal(buffer, layers[place])


def test_a_host_that_cannot_lock_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: OS call failed\nmore words")

    monkeypatch.setattr(torch, "empty", failing)
    with pytest.raises(InputError) as caught:
        HostSource(torch.device("cpu")).keep(0, torch.zeros(8, dtype=torch.uint8), starts=(0,))
    (problem,) = caught.value.problems
    assert str(problem.where) == "memory.host_streamed_layers"
    assert "OS call failed)" in problem.found
    assert "ulimit" in problem.hint


@pytest.mark.gpu
def test_a_gpu_waits_for_the_copy() -> None:
    device = torch.device("cuda")
    source = HostSource(device)
    layers = [torch.randint(0, 255, (1 << 24,), dtype=torch.uint8, device=device) for _ in range(4)]
    for place, layer in enumerate(layers):
        source.keep(place, layer, starts=(0,))
    buffer = torch.empty_like(layers[0])
    same = []
    for place in (0, 1, 2, 3, 2, 1, 0):
        source.fetch(place, buffer).wait()
        same.append((buffer == layers[place]).all())
    assert all(bool(each) for each in same)
