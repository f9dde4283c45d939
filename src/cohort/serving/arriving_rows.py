"""Weights of an adapter on their way to a GPU, copied while passes run.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ArrivingRows"]


class ArrivingRows:
    """Weights on their way to a GPU."""

    def __init__(self, rows_rD: Tensor, *, like: Tensor, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            self.rows_rD = rows_rD.to(like.device, like.dtype, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        self.rows_rD.record_stream(torch.cuda.current_stream(like.device))

    @property
    def is_there(self) -> bool:
        return bool(self._copied.query())

    def let_stream_wait(self) -> None:
        """Let what is launched from now on begin once the weights are there."""
        self._copied.wait()
