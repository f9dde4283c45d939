"""A process that solves windows of a pipeline while another one trains: questions come in, schedules go out.

``python -m cohort.scheduling.pipelines.solver_process`` reads :class:`WindowQuestion` records from standard input and
writes :class:`WindowSchedule` records to standard output, each as its length and a pickle. It ends with its input.
"""

from __future__ import annotations

import os
import pickle
import selectors
import struct
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any

from cohort.scheduling.pipelines.microbatch.packing import PackingLimits
from cohort.scheduling.pipelines.window_packing import WindowQuestion, WindowSchedule, solved_schedule

__all__ = ["SolverProcess", "main"]

# of each integer program, of which a window has some dozens
LIMITS = PackingLimits(work_limit=0.02)
_LENGTH = struct.Struct("!Q")
_PATIENCE_SECONDS = 2.0


class SolverProcess:
    """Solves one window at a time; the caller asks for a window and looks for its schedule later."""

    def __init__(self) -> None:
        """Start the process; it imports the solver while the caller goes on."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cohort.scheduling.pipelines.solver_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the process that trains, which closes this one
            start_new_session=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        self._asked: WindowQuestion | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a question has no answer yet."""
        return self._asked is not None

    def ask(self, question: WindowQuestion) -> None:
        """Begin to solve a window.

        Raises:
            OSError: the process is gone.
        """
        assert self._asked is None, "one window at a time"
        assert self._process.stdin is not None, "it has a pipe"
        _write(self._process.stdin, question)
        self._asked = question

    def answer(self, patience_seconds: float = 0.0) -> tuple[WindowQuestion, WindowSchedule] | None:
        """Return what was asked with its schedule, if it is there within ``patience_seconds``.

        Raises:
            EOFError: the process is gone.
        """
        assert self._process.stdout is not None, "it has a pipe"
        if self._asked is None:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(patience_seconds):
                return None
        asked, self._asked = self._asked, None
        found: WindowSchedule = _read(self._process.stdout)
        return asked, found

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # where the process died, what it did not read cannot be written any more
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            # in the middle of a window that is not waited for
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Solve windows until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # what a library prints is no answer
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            question: WindowQuestion = _read(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _write(answers, solved_schedule(question, limits=LIMITS))
        except BrokenPipeError:
            return


def _write(pipe: IO[bytes], record: object) -> None:
    data = pickle.dumps(record)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return pickle.loads(_exactly(pipe, length))


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError("the other end is gone")
    return data


if __name__ == "__main__":
    main()
