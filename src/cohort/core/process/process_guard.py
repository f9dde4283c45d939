"""A process that ends its whole group when the program that started it is gone, also one that was killed.

What runs other people's code may start programs of its own; the kernel ends one process with its parent, and no
grandchild. So the first process of the group only watches, and another one, its child, does the work.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Protocol

from cohort.core.process.parent_death import die_with_parent

__all__ = ["guard_this_group"]

_WATCHED = (signal.SIGTERM, signal.SIGCHLD)
# where the kernel says nothing of a parent's end
_LOOK_SECONDS = 1.0


class Closeable(Protocol):
    def close(self) -> None: ...


def guard_this_group(*of_worker: Closeable) -> None:
    """Go on in a child of this process, which from now on only watches; call it before there are threads.

    The process leads a group of its own. When the program that started it is gone, the group is killed; when the
    child ends, the guard ends as it did.

    Args:
        of_worker: What only the child has open from now on.
    """
    starter = os.getppid()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        die_with_parent(os.getppid())
        return
    for own in of_worker:
        own.close()
    die_with_parent(sent=signal.SIGTERM)
    while os.getppid() == starter:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _end_as(status)
        if _next_signal() == signal.SIGTERM:
            break
    os.killpg(0, signal.SIGKILL)


def _next_signal() -> int | None:
    # a signal that came before is still pending
    if hasattr(signal, "sigtimedwait"):
        found = signal.sigtimedwait(_WATCHED, _LOOK_SECONDS)
        return None if found is None else found.si_signo
    time.sleep(_LOOK_SECONDS / 10)
    return signal.SIGTERM if signal.SIGTERM in signal.sigpending() else None


def _end_as(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 1) if code else 0)
