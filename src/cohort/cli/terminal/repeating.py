"""``--watch``: shows something again and again while a run or a queue is going on."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from cohort.core.process.interrupts import signal_of
from cohort.core.process.lost_readers import has_reader

__all__ = ["WatchOption", "clear_terminal", "repeat"]

WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Again every few seconds, until it ends; Ctrl-C only stops the watching.")
]


def clear_terminal() -> None:
    """Clear the terminal, if stdout is one."""
    if sys.stdout is not None and sys.stdout.isatty():
        Console().clear()


def repeat(show: Callable[[], bool], *, every_seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Call ``show`` until it returns False (nothing more will come), until Ctrl-C, or until stdout has no reader."""
    try:
        while show():
            # `>&-`: nothing of it is seen
            if sys.stdout is None:
                return
            # a pipe would get it once thousands of characters have come together
            sys.stdout.flush()
            sleep(every_seconds)
            if not has_reader(sys.stdout):
                return
    except KeyboardInterrupt as error:
        # what is watched goes on in its own process
        if signal_of(error) is not signal.SIGINT:
            raise
