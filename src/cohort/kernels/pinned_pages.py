"""Large host tensors pinned where they lie, for copies to a device that nothing waits for.

Fresh pinned memory of 671 MB took 0.5 to 0.8 s of an H200's host, and no thread could launch anything meanwhile; memory
that is there is pinned in 0.02 to 0.06 s. Memory has to be unpinned before it is freed, and only when the device has
finished all copies from it and nothing is recorded. So dropping the last reference must not do it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from cohort.kernels.staging import pinned

__all__ = ["PinnedPages"]

# of owners that are gone
_of_gone_owners: list[Tensor] = []


class PinnedPages:
    """The tensors that one owner has pinned.

    They and their memory stay until its next :meth:`keep_only`, or any owner's once it is gone.
    """

    def __init__(self) -> None:
        """Pin nothing yet."""
        self._tensors: list[Tensor] = []
        self._lock = threading.Lock()
        # a process that ends gives them back by itself
        weakref.finalize(self, _of_gone_owners.extend, self._tensors).atexit = False

    def pin(self, host: Tensor) -> Tensor:
        """Pin a contiguous host tensor; return it, or a copy in memory as :func:`pinned` gives it.

        In a thread that launches nothing: a refused registration would show as an error of its next launch.
        """
        if torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0) != 0:
            return pinned(host)
        with self._lock:
            self._tensors.append(host)
        return host

    def keep_only(self, kept: Callable[[], Collection[Tensor]]) -> None:
        """Unpin what is not kept, of this owner and of those that are gone, while nothing is recorded.

        What the device has been given by then is waited for, if there is anything to unpin.

        Args:
            kept: Returns what is; tensors that a thread pins once this has begun stay as well.
        """
        with self._lock:
            there = list(self._tensors)
        staying = {id(tensor) for tensor in kept()}
        leaving = [tensor for tensor in there if id(tensor) not in staying]
        if leaving or _of_gone_owners:
            torch.cuda.synchronize()
        with self._lock:
            # only now: what is on no list may be freed, and a wait may fail
            left = {id(tensor) for tensor in leaving}
            self._tensors[:] = [tensor for tensor in self._tensors if id(tensor) not in left]
        while _of_gone_owners:
            leaving.append(_of_gone_owners.pop())
        for tensor in leaving:
            torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
