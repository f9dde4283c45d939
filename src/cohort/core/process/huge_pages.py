"""Asks for pages of two megabytes for large buffers of host memory, where the system gives them on demand.

A trial's state of 400 MB is 100,000 pages of 4 KiB, each of which the system clears at its first use and takes back at
its end. Filling 4 GB with large pages took 50 to 95 % of the time, depending on the machine; freeing it took a tenth or
less. Memory is freed at the latest when the process ends, which a user waits for (``benchmarks/sweeps/host_pages.py``).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

__all__ = ["use_huge_pages"]

# from here on glibc maps memory for itself, whatever it was told (its limit of M_MMAP_THRESHOLD)
LEAST_BYTES = 1 << 25


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    """Return the C library's `madvise`; None where it has none, or no such advice."""
    if getattr(mmap, "MADV_HUGEPAGE", None) is None:
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):
        return None
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    advise: Callable[[int, int, int], int] = madvise
    return advise


def use_huge_pages(address: int, num_bytes: int) -> bool:
    """Ask for large pages for memory that is not yet used; return whether the system took the advice.

    Args:
        address: Where the memory begins.
        num_bytes: Its size. Small buffers share their pages with others, and stay as they are.
    """
    if num_bytes < LEAST_BYTES or (advise := _advise()) is None:
        return False
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    return advise(begin, address + num_bytes - begin, mmap.MADV_HUGEPAGE) == 0
