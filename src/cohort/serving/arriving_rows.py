"""Weights of an adapter on their way to a GPU, copied while passes run.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

__all__ = ["ArrivingRows"]

_log = logging.getLogger(__name__)


class ArrivingRows:
    """Weights on their way to a GPU.

    Attributes:
        rows_rD: The weights there; those in host memory, where the GPU has no memory left for a second copy: what
            puts them into a slot then waits for the transfer.
    """

    def __init__(self, rows_rD: Tensor, *, like: Tensor, stream: torch.cuda.Stream) -> None:
        """Start the copy of ``rows`` to ``like``'s device on ``stream``."""
        self._copied: torch.cuda.Event | None = None
        try:
            with torch.cuda.stream(stream):
                self.rows_rD = rows_rD.to(like.device, like.dtype, non_blocking=True)
        except torch.OutOfMemoryError:
            _log.warning("the GPU has no memory left to load an adapter while passes run: it is loaded between them")
            self.rows_rD = rows_rD
            return
        with torch.cuda.stream(stream):
            self._copied = torch.cuda.Event()
            self._copied.record()
        self.rows_rD.record_stream(torch.cuda.current_stream(like.device))

    @property
    def is_there(self) -> bool:
        return self._copied is None or bool(self._copied.query())

    def let_stream_wait(self) -> None:
        """Let what is launched from now on begin once the weights are there."""
        if self._copied is not None:
            self._copied.wait()
