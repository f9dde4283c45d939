"""What a command begins while it imports, and the processes of it that it ends before it ends itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

__all__ = ["begin_processes", "begin_task", "end_work_ahead"]

_ENDS = (
    ("cohort.machine.compile_ahead.workers", "end_compiling"),
    ("cohort.machine.compile_ahead.fork_server", "end_fork_server"),
    ("cohort.prepare.rows.ahead", "end_rows_ahead"),
)


def begin_processes() -> Future[int] | None:
    """Start what compiles kernels, and the driver of GPUs; return the driver's answer where there may be a GPU."""
    from cohort.machine.compile_ahead.fork_server import begin_fork_server
    from cohort.machine.cuda_driver import begin_cuda_driver

    begin_fork_server()
    return begin_cuda_driver()


def begin_task(
    path: Path, overrides: Sequence[str], *, driver: Future[int] | None, new_directory: Path | None = None
) -> None:
    """Begin with the rows of a task, and with its GPU; call it before anything imports torch.

    Args:
        overrides: Values of its keys from the command line.
        driver: What :func:`begin_processes` returned; None for a task whose GPUs are other processes'.
        new_directory: Where a run is to be made; the command ends where one is there. None where it goes on.
    """
    from cohort.machine.cuda_driver import begin_cuda_context
    from cohort.prepare.rows.ahead import begin_rows_ahead
    from cohort.runs.directory import RunDirectory
    from cohort.tasks.loading import load_task

    def trains_on_gpu() -> bool:
        # errors of either are raised where the run reads it
        is_refused = new_directory is not None and RunDirectory.find_problem(new_directory) is not None
        return not is_refused and load_task(path, overrides).num_gpus != 0

    begin_rows_ahead(path, overrides)
    begin_cuda_context(driver, is_wanted=trains_on_gpu)


def end_work_ahead() -> None:
    """End what nothing waits for any more: Python would wait until all kernels are compiled."""
    for module, name in _ENDS:
        # a module that was not imported, or not to its end, has started nothing
        if (end := getattr(sys.modules.get(module), name, None)) is not None:
            end()
