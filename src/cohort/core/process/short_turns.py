"""Shorter turns at the interpreter's lock, for threads that need it often and briefly.

A thread that asks waits up to a whole turn, 5 ms, while another computes in Python. Six threads that copied 16 GB in
blocks of 16 MB, asking five times a block, waited most of their time next to such a thread (docs/decisions/0098).
The length of a turn belongs to the process: code that sets it for good does so outside of these blocks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TURN_SECONDS", "short_turns"]

# a copy of 16 MB takes 3 ms, so a few waits of this length cost no more than the copy
TURN_SECONDS = 0.0005

_lock = threading.Lock()
_num_inside = 0
_before = 0.0


@contextmanager
def short_turns() -> Iterator[None]:
    """Shorten the turns of all threads inside; the last of several blocks to end puts back what was set before."""
    global _num_inside, _before
    with _lock:
        if not _num_inside:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, TURN_SECONDS))
        _num_inside += 1
    try:
        yield
    finally:
        with _lock:
            _num_inside -= 1
            if not _num_inside:
                sys.setswitchinterval(_before)
