"""The process that works a service's queue off: started, watched, started again, and asked to park everything."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from cohort.task_queue.workers.pool import PoolRequest

__all__ = ["DispatcherProcess"]

_log = logging.getLogger(__name__)
_LEAST_SECONDS_BETWEEN_STARTS = 1.0
_LOG_NAME = "dispatcher.log"
_MOST_WORDS = 4000


class DispatcherProcess:
    """Owns the dispatcher. The kernel ends it when the thread that started it ends."""

    def __init__(self, directory: Path, places: PoolRequest) -> None:
        """Start nothing yet.

        Args:
            directory: The queue's.
            places: Where its workers run.
        """
        self._directory, self._places = directory, places
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = float("-inf")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> None:
        """Start the process if it is not there."""
        if self.is_alive or time.monotonic() - self._started_at < _LEAST_SECONDS_BETWEEN_STARTS:
            return
        if self._process is not None:
            text = "the dispatcher ended with %s and is started again: %s"
            _log.warning(text, self._process.returncode, self._last_words())
        self._started_at = time.monotonic()
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / _LOG_NAME).open("ab") as log:
            self._process = subprocess.Popen(
                # unbuffered: the reason of its end is the last line, whichever stream it goes to
                [sys.executable, "-u", "-m", "cohort.service.jobs.dispatcher_program"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # a terminal's Ctrl-C is for the server, which then asks for an orderly end
                start_new_session=True,
            )
        order = {"parent": os.getpid(), "directory": str(self._directory), "places": self._places.to_json()}
        assert self._process.stdin is not None, "it was asked for"
        with self._process.stdin as pipe:
            pipe.write(json.dumps(order).encode() + b"\n")

    def _last_words(self) -> str:
        try:
            with (self._directory / _LOG_NAME).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_WORDS))
                lines = log.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return "it left no log"
        return lines[-1] if lines else "it said nothing"

    def stop(self, *, wait_seconds: float) -> bool:
        """Let every task save its state; return whether that was done in time."""
        if self._process is None or not self.is_alive:
            return True
        self._process.terminate()
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True
