"""Large host tensors pinned where they lie, for copies to a device that nothing waits for.

Fresh pinned memory of 671 MB took 0.83 s of an H200's host, and no thread could launch anything meanwhile; memory that
is there is pinned in 0.03 to 0.06 s. It has to be unpinned before it is freed, and that only where the device has done
all copies from it and nothing is being recorded: so never by whoever drops the last reference.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection

import torch
from torch import Tensor

from cohort.kernels.staging import pinned

__all__ = ["PinnedPages"]

# of owners that are gone
_left: list[Tensor] = []


class PinnedPages:
    """The tensors that one owner has pinned; they and their memory stay until :meth:`keep_only`, of any owner."""

    def __init__(self) -> None:
        """Pin nothing yet."""
        self._tensors: list[Tensor] = []
        self._lock = threading.Lock()
        # a process that ends gives them back by itself
        weakref.finalize(self, _left.extend, self._tensors).atexit = False

    def pin(self, host: Tensor) -> Tensor:
        """Pin a contiguous host tensor, in any thread; return it, or a copy in memory as :func:`pinned` gives it."""
        if torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0) != 0:
            return pinned(host)
        with self._lock:
            self._tensors.append(host)
        return host

    def keep_only(self, kept: Collection[Tensor]) -> None:
        """Unpin what is not ``kept``, of this owner and of those that are gone, while nothing is recorded.

        What the device has been given by then is waited for, if there is anything to unpin.
        """
        staying = {id(tensor) for tensor in kept}
        with self._lock:
            leaving = [tensor for tensor in self._tensors if id(tensor) not in staying]
            self._tensors[:] = [tensor for tensor in self._tensors if id(tensor) in staying]
        while _left:
            leaving.append(_left.pop())
        if leaving:
            torch.cuda.synchronize()
        for tensor in leaving:
            torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
