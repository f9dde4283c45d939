"""Tensors copied by threads have the bytes of their source."""

from __future__ import annotations

import pytest
import torch

from cohort.models.checkpoint import copies_ahead
from cohort.models.checkpoint.copies_ahead import CopiesAhead


@pytest.mark.parametrize("num_threads", [1, 6])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_each_copy_is_whole_once_it_is_done(device: str, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # one thread uses its blocks for one tensor after the other
    monkeypatch.setattr(copies_ahead, "MOST_THREADS", num_threads)
    # several blocks for the larger tensors, the last of them not full
    monkeypatch.setattr(copies_ahead, "BLOCK_BYTES", 1000)
    sources = [torch.randn(shape).to(torch.bfloat16) for shape in ((3, 7), (64, 129), (0, 5), (500, 2))]
    with CopiesAhead() as copies:
        targets = [torch.zeros_like(source, device=device) for source in sources]
        done = [copies.begin(target, source) for target, source in zip(targets, sources, strict=True)]
        for one, target, source in zip(done, targets, sources, strict=True):
            one.result()
            assert torch.equal(target.cpu(), source)


def test_an_error_comes_with_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("no bytes")

    monkeypatch.setattr(copies_ahead, "_bytes_of", refused)
    with CopiesAhead() as copies:
        done = copies.begin(torch.zeros(4), torch.zeros(4))
        with pytest.raises(ValueError, match="no bytes"):
            done.result()


def test_no_part_of_a_longer_tensor_is_left_out() -> None:
    with CopiesAhead() as copies, pytest.raises(AssertionError, match="left out"):
        copies.begin(torch.zeros(4), torch.zeros(5))
