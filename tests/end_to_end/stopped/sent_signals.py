"""Signals that a process sends itself at a chosen call of a chosen function."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["call_before", "send_signal"]


def call_before(place: str, do: Callable[[], None], *, call: int = 1, after: str | None = None) -> None:
    """Have ``do`` called right before the ``call``-th call of a function, named as ``module:Class.function``.

    Args:
        after: Calls count once this path exists.
    """
    module, _, path = place.partition(":")
    *parts, name = path.split(".")
    owner = functools.reduce(getattr, parts, importlib.import_module(module))
    original = getattr(owner, name)
    calls = itertools.count(1)

    @functools.wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        if (after is None or os.path.exists(after)) and next(calls) == call:
            do()
        return original(*arguments, **options)

    setattr(owner, name, watched)


def send_signal(number: int, *, to_workers: bool = False) -> None:
    """Send this process a signal; with ``to_workers``, its child processes first."""
    if to_workers:
        for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            os.kill(int(word), number)
    os.kill(os.getpid(), number)
