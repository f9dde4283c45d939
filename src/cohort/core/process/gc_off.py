"""Turns Python's garbage collector off: where it would find nothing, and where what it frees would be counted."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collections_off", "imports_uncollected"]


@contextmanager
def collections_off() -> Iterator[None]:
    """Collect no cycles meanwhile. Imports make none, and looking for some takes a sixth of a check's time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def imports_uncollected(module: str) -> Iterator[None]:
    """Collect no cycles while ``module`` is imported, and leave what it made out of all later collections.

    Modules live as long as the process, and each full collection would walk over their objects, those during training
    included. A process that had imported the module before keeps its collections: it may hold other things by now.
    """
    is_first = module not in sys.modules
    with collections_off():
        yield
    if is_first:
        gc.freeze()
