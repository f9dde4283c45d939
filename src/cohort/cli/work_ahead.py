"""What a command has begun in other processes, and ends before it ends itself."""

from __future__ import annotations

import sys

__all__ = ["end_work_ahead"]


def end_work_ahead() -> None:
    """End what nothing waits for any more: Python would wait until all kernels are compiled."""
    # modules that were not imported have started nothing
    if (workers := sys.modules.get("cohort.machine.compile_ahead.workers")) is not None:
        workers.end_compiling()
    if (fork_server := sys.modules.get("cohort.machine.compile_ahead.fork_server")) is not None:
        fork_server.end_fork_server()
    if (rows_ahead := sys.modules.get("cohort.prepare.rows.ahead")) is not None:
        rows_ahead.end_rows_ahead()
