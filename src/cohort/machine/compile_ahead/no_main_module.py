"""Processes that are started without the caller's ``__main__``."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["no_main_module"]

# one thread at a time says what the processes that it starts are told
_STARTING = threading.Lock()


@contextlib.contextmanager
def no_main_module() -> Iterator[None]:
    """Tell processes that this thread starts nothing of ``__main__``: they would run a script without a guard again.

    The module itself stays as it is: other threads read its file meanwhile, as ``inspect`` does for each frame.
    """
    spawn: Any = importlib.import_module("multiprocessing.spawn")
    with _STARTING:
        own, thread = spawn.get_preparation_data, threading.get_ident()

        def told(name: str) -> dict[str, Any]:
            data: dict[str, Any] = own(name)
            if threading.get_ident() != thread:
                return data
            return {key: value for key, value in data.items() if not key.startswith("init_main_from")}

        spawn.get_preparation_data = told
        try:
            yield
        finally:
            spawn.get_preparation_data = own
