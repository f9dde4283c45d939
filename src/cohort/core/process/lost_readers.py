"""Output whose reader may go away: what is written to a closed terminal or pipe is dropped, and the work goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
from collections.abc import Iterator
from typing import TextIO, cast

__all__ = ["has_reader", "outliving_reader", "outliving_readers"]


@contextlib.contextmanager
def _unless_reader_is_gone(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # A closed pipe (`| head`), a closed terminal. A file may have EIO as well, of a disk that fails: what was to be
        # kept there is lost, which is reported as a full disk is.
        is_gone = error.errno == errno.EPIPE or (error.errno == errno.EIO and _is_terminal(stream))
        if not is_gone:
            raise


def _is_terminal(stream: TextIO) -> bool:
    # not isatty(), which is False once the terminal is closed
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return False


class _Outliving:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _unless_reader_is_gone(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with _unless_reader_is_gone(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def outliving_reader(stream: TextIO) -> TextIO:
    """Return ``stream`` for writing: what its reader does not read any more is dropped."""
    return cast("TextIO", _Outliving(stream))


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """Inside the block, no reader of stdout and stderr ends this process by going away."""
    # None where a process has none
    before: tuple[TextIO | None, TextIO | None] = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (cast("TextIO", stream and outliving_reader(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", before)
        for stream in filter(None, before):
            _send_or_drop(stream)


def has_reader(stream: TextIO | None) -> bool:
    """Return whether what is written to ``stream`` may still be read, as the system knows it; None: there is none."""
    if stream is None:
        return False
    poll = select.poll()
    # a stream of a notebook or a test has no descriptor, or is closed
    with contextlib.suppress(OSError, ValueError):
        poll.register(stream.fileno(), 0)
        return not any(event & select.POLLERR for _, event in poll.poll(0))
    return True


def _send_or_drop(stream: TextIO) -> None:
    """Send what fitted into the buffer; let a stream without a reader lead nowhere."""
    # asked of the system: what failed to be written need not be in the stream's buffer any more
    if has_reader(stream):
        with _unless_reader_is_gone(stream):
            stream.flush()
            # not reached where the reader left just now: that error ends the block, and what follows is done
            return
    # Python would flush it once more at exit, and print a traceback or exit with 120
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
