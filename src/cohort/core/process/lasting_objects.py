"""What a process keeps for as long as it works, such as imported modules and a loaded model, is not collected again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["lasting_objects_uncollected"]


@contextmanager
def lasting_objects_uncollected() -> Iterator[None]:
    """Inside the block, leave the objects that exist at its beginning out of collections.

    A full collection walks over the quarter of a million objects of torch, transformers and a tokenizer, for 0.1 s or
    more, in which no thread computes; a burst of requests sets one off.

    Afterwards they are collected again, unless the process had left out others before: Python can only take back all
    of them together, and the process wants those left out for as long as it lives.
    """
    had_left_out = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not had_left_out:
            gc.unfreeze()
