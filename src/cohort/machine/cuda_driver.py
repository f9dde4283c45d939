"""NVIDIA's driver, and the context of a GPU, started while this process imports what will use them.

The driver takes 0.2 s to start, and seconds where nothing keeps it loaded; a context takes 0.15 s. torch starts both
with its first questions about GPUs, holding the interpreter's lock, so that no thread of this process does anything
meanwhile. Nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from cohort.core.process.daemon_thread import begin_in_thread

__all__ = ["DRIVER_FILE", "begin_cuda_context", "begin_cuda_driver", "may_have_gpu"]

DRIVER_FILE = Path("/proc/driver/nvidia/version")
_LIBRARY = "libcuda.so.1"
# of torch: without it there is no support for GPUs
_GPU_LIBRARY = "libtorch_cuda.so"


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


def begin_cuda_context(driver: Future[int] | None, *, is_wanted: Callable[[], bool]) -> Future[bool] | None:
    """Make the context of the first GPU in a thread, once the driver runs: the one that torch will use.

    Some hundred megabytes of the GPU are taken from then on, until the process ends.

    Args:
        driver: What :func:`begin_cuda_driver` returned.
        is_wanted: Asked in the thread: whether this process will compute on a GPU. After an error nothing is made.

    Returns:
        Whether it was made; None where nothing was begun. An error is left to torch, which makes it again.
    """
    if driver is None or not _torch_uses_gpus():
        return None

    def make() -> bool:
        return driver.result() == 0 and is_wanted() and _make_context() == 0

    return begin_in_thread("cohort-cuda-context", make)


def _start() -> int:
    # ctypes gives the interpreter's lock away for the call
    return int(ctypes.CDLL(_LIBRARY).cuInit(0))


def _make_context() -> int:
    library, device, context = ctypes.CDLL(_LIBRARY), ctypes.c_int(), ctypes.c_void_p()
    failed = int(library.cuDeviceGet(ctypes.byref(device), 0))
    return failed or int(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))


def _torch_uses_gpus() -> bool:
    """Return whether the torch that is installed was built for GPUs of NVIDIA; it is found, and not imported."""
    found = importlib.util.find_spec("torch")
    return (
        found is not None and found.origin is not None and (Path(found.origin).parent / "lib" / _GPU_LIBRARY).exists()
    )
