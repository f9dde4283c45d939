"""The side of a test that has runs carried out in forks of one process, to be killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

from tests.support.forking_program import end_program, start_program

__all__ = ["ForkServer"]


class ForkServer:
    """Runs tune and resume in forks, to be killed."""

    def __init__(self) -> None:
        self._process = start_program("tests.end_to_end.stopped.fork_server", PYTHONWARNINGS="")
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self, command: dict[str, Any], *, kill_after: float | None = None, by: int = signal.SIGKILL) -> int:
        """Carry out ``command``, killed after that many seconds; return its exit code, negative for a signal."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        process_id = json.loads(self._line())["process_id"]
        timer = None
        if kill_after is not None:
            timer = threading.Timer(kill_after, self._kill, (process_id, by))
            timer.start()
        status = json.loads(self._line())["status"]
        if timer is not None:
            timer.cancel()
            timer.join()
        return int(status)

    @staticmethod
    def _kill(process_id: int, by: int) -> None:
        try:
            os.kill(process_id, by)
        except ProcessLookupError:
            return

    def close(self) -> None:
        end_program(self._process)
