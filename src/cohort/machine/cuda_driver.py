"""NVIDIA's driver, started while this process imports what will use it.

It takes 0.2 s to start, and seconds where nothing keeps it loaded. torch starts it with its first question about GPUs,
holding the interpreter's lock, so that no thread of this process does anything meanwhile. Nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import os
import sys
from concurrent.futures import Future
from pathlib import Path

from cohort.core.process.daemon_thread import begin_in_thread

__all__ = ["DRIVER_FILE", "begin_cuda_driver", "may_have_gpu"]

DRIVER_FILE = Path("/proc/driver/nvidia/version")
_LIBRARY = "libcuda.so.1"


def may_have_gpu(driver: Path = DRIVER_FILE) -> bool:
    """Return whether this process may find a GPU of NVIDIA: there is a driver, and no setting hides what it drives.

    Args:
        driver: A file that is there where the driver is.
    """
    return sys.platform == "linux" and driver.exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def begin_cuda_driver(driver: Path = DRIVER_FILE) -> Future[int] | None:
    """Start the driver in a thread where there may be a GPU. An error is left to torch, which starts the driver again.

    It takes no memory of a GPU, but the process has the device files open from then on, also for a task that will
    train on the CPU. What the driver reads from the environment has to be set before.

    Returns:
        The driver's answer, 0 for success; None where nothing was begun.
    """
    return begin_in_thread("cohort-cuda", _start) if may_have_gpu(driver) else None


def _start() -> int:
    # ctypes gives the interpreter's lock away for the call
    return int(ctypes.CDLL(_LIBRARY).cuInit(0))
