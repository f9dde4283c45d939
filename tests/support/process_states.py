"""Whether a process, which need be no child of the test's, has stopped or ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["is_gone", "stop_process", "wait_until_gone"]

# no goal: a machine may be as busy as it likes, but a test that hangs has to end
_HANGS_AFTER_SECONDS = 120.0


def is_gone(process_id: int) -> bool:
    """Return whether a process has ended; one that waits to be reaped has."""
    return _state(process_id) in ("", "Z")


def wait_until_gone(process_id: int) -> None:
    """Wait until a process has ended; it may be reaped by another."""
    _wait(lambda: is_gone(process_id), f"process {process_id} lives on")


def stop_process(process_id: int) -> None:
    """Send SIGSTOP to a process and wait until it does nothing any more."""
    os.kill(process_id, signal.SIGSTOP)
    _wait(lambda: _state(process_id) == "T" or is_gone(process_id), f"process {process_id} goes on")
    assert not is_gone(process_id), f"process {process_id} has ended"


def _state(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        # reaped before the file is opened, it is not there; reaped before it is read, there is no such process
        return ""


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _HANGS_AFTER_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)
