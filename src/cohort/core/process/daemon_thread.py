"""A function that runs in a thread of its own, for which nothing waits at the interpreter's end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

__all__ = ["begin_in_thread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def begin_in_thread(name: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Begin a function in a daemon thread; return what will have its result.

    The interpreter waits for the threads of a pool before it ends: a task that is refused would end minutes later.
    """
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(function(*args, **kwargs))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return found
