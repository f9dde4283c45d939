"""The process whose forks compile: it imports torch and Triton, which takes as long as the caller's own imports.

So a command that may compile starts it before it imports anything itself. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from cohort.machine.compile_ahead.triton_cache import is_cold, triton_cache
from cohort.machine.cuda_driver import DRIVER_FILE, may_have_gpu

__all__ = ["PRELOADED", "begin_fork_server", "end_fork_server"]

# what each worker would take seconds to import
PRELOADED = ("cohort.kernels.packed_linear.triton", "cohort.kernels.attention.triton")


def begin_fork_server(*, driver: Path = DRIVER_FILE) -> bool:
    """Start it where nothing was ever compiled; return whether it was. It ends with this process.

    Whether there is a GPU to compile for is not known yet: where there is none, the server's imports were for nothing.

    Args:
        driver: A file that is there where a GPU of NVIDIA is.
    """
    if not may_have_gpu(driver):
        return False
    if (cache := triton_cache()) is None or not is_cold(cache):
        return False
    # without it the first worker starts the server
    with contextlib.suppress(OSError):
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
        # it inherits the mask: Ctrl-C is the caller's, and the server would answer it with a traceback of its imports
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return True
    return False


def end_fork_server() -> None:
    """End it at once, as this process ends: it has its output open, and notices its end after its own imports."""
    server: Any = forkserver._forkserver
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
