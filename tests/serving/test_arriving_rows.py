"""Weights arrive beside the passes; without memory for that, they stay where they are and a slot reads them there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cohort.serving.arriving_rows import ArrivingRows


class FullDevice(torch.Tensor):
    """Host memory of which a GPU cannot have another copy."""

    def to(self, *args: Any, **settings: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_no_memory_for_a_second_copy_is_no_failure() -> None:
    rows = torch.ones(2, 3).as_subclass(FullDevice)
    no_stream: Any = None
    arriving = ArrivingRows(rows, like=torch.zeros(1), stream=no_stream)
    assert arriving.is_there
    arriving.let_stream_wait()
    assert arriving.rows_rD is rows


@pytest.mark.gpu
def test_what_arrives_is_what_was_sent() -> None:
    rows = torch.randn(16, 1000).pin_memory()
    arriving = ArrivingRows(rows, like=torch.zeros(1, device="cuda", dtype=torch.bfloat16), stream=torch.cuda.Stream())
    arriving.let_stream_wait()
    assert torch.equal(arriving.rows_rD.cpu(), rows.bfloat16())
    torch.cuda.synchronize()
    assert arriving.is_there
