"""Lets two threads launch a kernel of Triton that neither has loaded yet.

Triton says that a kernel can be launched before it has loaded it, and loads it without the interpreter's lock: another
thread that launches the same kernel meanwhile is given no function, and ends with a TypeError (triton-lang/triton,
issue 11518).
"""

from __future__ import annotations

import functools
import importlib
import threading
from typing import Any

__all__ = ["load_kernels_once"]

# one for all kernels: loading takes milliseconds, and what is compiled first is compiled outside of it
_LOADING = threading.Lock()


@functools.cache
def load_kernels_once() -> None:
    """From now on a launch waits where another thread loads its kernel. Triton must be installed."""
    compiled: Any = importlib.import_module("triton.compiler.compiler").CompiledKernel
    own = compiled.run.fget

    def run(kernel: Any) -> Any:
        if kernel.function is not None:
            return own(kernel)
        with _LOADING:
            # one that could not be loaded is tried again; a partial raises why it never can be
            if kernel.function is None and not isinstance(kernel._run, functools.partial):
                kernel._run = None
            return own(kernel)

    compiled.run = property(run)
