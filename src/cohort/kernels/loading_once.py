"""Lets two threads launch a kernel of Triton that neither has loaded yet.

Triton says that a kernel can be launched before it has loaded it, and loads it without the interpreter's lock: another
thread that launches the same kernel meanwhile is given no function, and ends with a TypeError (triton-lang/triton, pull
request 11518).
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

__all__ = ["load_kernels_once"]

# One for all kernels: a load takes milliseconds, or until the device is idle; where what launches a kernel is not built
# yet, a C compiler runs as well. What compiles the kernel itself is waited for before. A load may collect garbage.
_LOADING = threading.RLock()


@functools.cache
def load_kernels_once() -> None:
    """From now on a launch waits where another thread loads its kernel. Triton must be installed.

    A load that is under way is not waited for: that kernel may be loaded twice, and either one is launched.
    """
    importlib.import_module("triton.compiler.compiler").CompiledKernel.run = property(_loaded)


def _loaded(kernel: Any) -> Any:
    """Return what launches a kernel, once its function is there."""
    if kernel.function is None:
        with _LOADING:
            # one that could not be loaded is tried again; a partial raises why it never can be
            if kernel.function is None and not isinstance(kernel._run, functools.partial):
                kernel._init_handles()
    return kernel._run
