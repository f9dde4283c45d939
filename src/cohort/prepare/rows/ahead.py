"""The rows of a first start are tokenised by another process while this one imports torch and collects kernels.

To tokenise them means to import transformers, which with the rows takes 0.5 s on a small CPU machine and 2 to 3 s on
the hosts of GPUs, while all other cores idle. The process fills the caches that a second start reads. Whatever hinders
it, rows that it did not leave there are read and tokenised as without it, with the same errors. Nothing here imports
torch.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.process.cores import num_cores
from cohort.models.source import find_model_here
from cohort.prepare.rows.request import RowsRequest
from cohort.tasks.loading import load_task

__all__ = ["begin_rows_ahead", "end_rows_ahead", "settle_rows_ahead"]

_PROGRAM = "cohort.prepare.rows.ahead_program"
# how long it may take to remove the file it is writing
_PATIENCE_SECONDS = 0.5
# processes that may still tokenise: `read_rows` waits for them, the end of the command ends them
_RUNNING = list[subprocess.Popen[bytes]]()


def begin_rows_ahead(path: str | Path, overrides: Sequence[str] = ()) -> bool:
    """Start the process for a task file where it is of use; return whether it was.

    Args:
        overrides: As for :func:`load_task`.
    """
    # a program that has imported torch is no command that has just begun, and may read rows of hundreds of tasks
    if "torch" in sys.modules or num_cores() < 2 or not sys.executable:
        return False
    # errors are raised where the run reads the task, its model and its rows
    with contextlib.suppress(Exception):
        request = RowsRequest.of(load_task(path, overrides))
        folder = find_model_here(request.model)
        if folder is not None and request.is_worth_keeping(folder) and _is_writable(default_cache_directory()):
            _start(replace(request, model=str(folder)))
            return True
    return False


def settle_rows_ahead() -> None:
    """Wait until the caches hold what they will hold."""
    for process in list(_RUNNING):
        process.wait()
        _forget(process)


def end_rows_ahead() -> None:
    """End what nothing waits for any more: the command ends."""
    for process in list(_RUNNING):
        process.terminate()
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            # it is inside a library's call
            process.kill()
            process.wait()
        _forget(process)


def _start(request: RowsRequest) -> None:
    message = pickle.dumps((os.getpid(), request))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C is for this process, which ends the other one
        start_new_session=True,
        # modules are found as here: the same libraries tokenise
        env={**os.environ, "PYTHONPATH": os.pathsep.join(own or os.getcwd() for own in sys.path)},
    )
    _RUNNING.append(process)
    assert process.stdin is not None, "it has a pipe"
    # left open: where the kernel does not end it with this process, its input's end does
    with contextlib.suppress(OSError):
        process.stdin.write(message)
        process.stdin.flush()


def _forget(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it has a pipe"
    # what it did not read cannot be written any more
    with contextlib.suppress(OSError):
        process.stdin.close()
    _RUNNING.remove(process)


def _is_writable(directory: Path) -> bool:
    there = next((folder for folder in (directory, *directory.parents) if folder.exists()), None)
    return there is not None and there.is_dir() and os.access(there, os.W_OK)
