"""The program of a worker process: ``python -m cohort.cluster.worker_process DESCRIPTOR PARENT MODULE:FUNCTION``.

It takes its end of the socket, ties its life to the dispatcher's, and calls the function with the channel. The
environment (visible devices, threads) was set before the interpreter began, so that every library finds it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys

from cohort.cluster.line_channel import LineChannel

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent: int) -> None:
    """Ask the kernel (Linux) to kill this process when the dispatcher dies, even while it hangs or is stopped."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        # not Linux: the worker's reader thread notices the closed socket
        return
    # the dispatcher may have died before the request
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Serve until the function returns or the dispatcher is gone."""
    descriptor, parent, target = sys.argv[1:]
    _die_with_parent(int(parent))
    channel = LineChannel(socket.socket(fileno=int(descriptor)))
    module, _, name = target.partition(":")
    getattr(importlib.import_module(module), name)(channel)


if __name__ == "__main__":
    main()
