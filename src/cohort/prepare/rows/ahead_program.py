"""The program that tokenises rows ahead of a run: ``python -m cohort.prepare.rows.ahead_program``.

It reads the number of the process that started it and a :class:`RowsRequest`, as a pickle, from standard input, leaves
the rows in the caches and says nothing. It ends with the process that started it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from types import FrameType

from cohort.core.process.parent_death import die_with_parent
from cohort.prepare.rows.request import RowsRequest

__all__ = ["main"]


def main() -> None:
    """Read the request and fill the caches."""
    starter, request = pickle.load(sys.stdin.buffer)
    assert isinstance(request, RowsRequest), "begin_rows_ahead sends it"
    die_with_parent(starter)
    threading.Thread(target=_end_with_input, daemon=True).start()
    # a file that is being written is removed
    signal.signal(signal.SIGTERM, _leave)
    # transformers imports torch with its tokenizers where it finds it, and tokenises without it: half of the time
    sys.modules["torch"] = None  # type: ignore[assignment]
    request.keep()


def _end_with_input() -> None:
    # not through the buffer, which nothing may hold as Python ends
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(1)


if __name__ == "__main__":
    main()
