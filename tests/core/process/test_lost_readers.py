"""A closed terminal or pipe ends no process; other errors of output still show."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from cohort.cli.terminal.progress import RUN_VIEW, watching
from cohort.core.process.lost_readers import has_reader, outliving_reader, outliving_readers
from cohort.engine.train.watching.progress import RunProgress


class _Closed(io.StringIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(self.number, "no reader")


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        yield stream


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE])
def test_progress_outlives_its_reader(terminal: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(sys, "stderr", _Closed(number))
    with outliving_readers(), watching(RUN_VIEW) as watcher:
        watcher.note("a note")
        watcher.update(RunProgress(phase="training"))


def test_a_full_disk_is_no_lost_reader() -> None:
    with pytest.raises(OSError, match="no reader"):
        outliving_reader(_Closed(errno.ENOSPC)).write("a line")


def test_what_is_written_to_a_closed_pipe_leads_nowhere(unread: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", unread)
    with outliving_readers():
        assert not has_reader(sys.stdout)
        for _ in range(3):
            print("x" * 100_000, flush=True)
        print("in the buffer")
    # as Python does when the process ends
    unread.flush()
    assert sys.stdout is unread


def test_a_pipe_that_is_read_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with outliving_readers():
            assert has_reader(sys.stdout)
            print("a line")
        stream.close()
        assert reader.read() == "a line\n"


def test_a_process_without_output_has_none_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with outliving_readers():
        assert sys.stdout is None
        print("dropped by Python")
