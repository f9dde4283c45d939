"""Output to a terminal that may go away: what is written to a closed one is dropped."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TextIO, cast

__all__ = ["outliving_terminal", "unless_terminal_is_gone"]


@contextlib.contextmanager
def unless_terminal_is_gone() -> Iterator[None]:
    """Drop what the block writes to a terminal that was closed."""
    try:
        yield
    except OSError as error:
        # EIO alone: a full disk and a closed pipe are reported
        if error.errno != errno.EIO:
            raise


class _Outliving:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with unless_terminal_is_gone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with unless_terminal_is_gone():
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def outliving_terminal(stream: TextIO) -> TextIO:
    """Return ``stream`` for progress: a run must not end because the terminal that showed it was closed."""
    return cast("TextIO", _Outliving(stream))
