"""Ends a process together with the one that started it, even while it hangs or is stopped."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, *, sent: int = signal.SIGKILL) -> None:
    """Ask the kernel (Linux) to kill this process when the thread that started it ends.

    Args:
        parent: The process that started this one: where it is gone already, this one ends now. None: the caller
            notices by other means.
        sent: The signal, for one that does something else at its parent's end.
    """
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, sent)
    except (AttributeError, OSError):
        # not Linux: the process notices its closed connection once it reads from it
        return
    # the parent may have died before the request
    if parent is not None and os.getppid() != parent:
        os._exit(1)
