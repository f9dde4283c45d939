"""What a command has begun in other processes, and ends before it ends itself."""

from __future__ import annotations

import sys

__all__ = ["end_work_ahead"]

_ENDS = (
    ("cohort.machine.compile_ahead.workers", "end_compiling"),
    ("cohort.machine.compile_ahead.fork_server", "end_fork_server"),
    ("cohort.prepare.rows.ahead", "end_rows_ahead"),
)


def end_work_ahead() -> None:
    """End what nothing waits for any more: Python would wait until all kernels are compiled."""
    for module, name in _ENDS:
        # a module that was not imported, or not to its end, has started nothing
        if (end := getattr(sys.modules.get(module), name, None)) is not None:
            end()
