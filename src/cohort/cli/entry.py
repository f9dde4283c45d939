"""The command ``cohort`` as a process: it runs the command line, and ends without taking the process apart.

Python ends by emptying each of two thousand modules and freeing what they held, and torch's libraries by giving back
memory piece by piece, which the system does at once. On an 8B model that is a second or two behind the last file.
What something registered for the process's end before the command began (a ``sitecustomize``) does not run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
from typing import NoReturn

from cohort.core.process.interrupts import ending_at_once

__all__ = ["command"]

# of this process, once its command has ended: what runs at the end of a process takes no arguments
_codes: list[int] = []


def command() -> NoReturn:
    """Run the command line of this process, and end it with its exit code."""
    # the first that is registered is the last to run: threads have ended by then, and so has what others registered
    atexit.register(_leave)
    with ending_at_once():
        from cohort.cli.main import main

    try:
        main()
    except SystemExit as leaving:
        _codes.append(_code_of(leaving))
        raise
    _codes.append(0)
    sys.exit(0)


def _code_of(leaving: SystemExit) -> int:
    """Return what a process that ends so has as its exit code; what is no number is printed, and is a 1."""
    if leaving.code is None:
        return 0
    return leaving.code if isinstance(leaving.code, int) else 1


def _leave() -> None:
    # after an uncaught error Python ends as usual
    if not _codes:
        return
    for stream in (sys.stdout, sys.stderr):
        # a reader may be gone
        with contextlib.suppress(Exception):
            stream.flush()
    # what libraries have printed
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)
    os._exit(_codes[-1] & 0xFF)
