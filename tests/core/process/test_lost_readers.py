"""A closed terminal or pipe ends no process; other errors of output still show."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

import pytest

from cohort.cli.terminal.progress import RUN_VIEW, watching
from cohort.core.process.lost_readers import has_reader, outliving_reader, outliving_readers
from cohort.engine.train.watching.progress import RunProgress


class _Failing:
    """A stream with a descriptor that cannot be written to, as on a disk."""

    def __init__(self, stream: TextIO, *, number: int) -> None:
        self.stream, self.number = stream, number

    def fileno(self) -> int:
        return self.stream.fileno()

    def write(self, _: str) -> int:
        raise OSError(self.number, os.strerror(self.number))

    def flush(self) -> None:
        self.write("")


@pytest.fixture(params=["pipe", "terminal"])
def unread(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    """A pipe or a terminal whose reader is gone."""
    reading, writing = os.pipe() if request.param == "pipe" else os.openpty()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        yield stream


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_progress_outlives_its_reader(terminal: str, unread: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(unread, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", unread)
    with outliving_readers(), watching(RUN_VIEW) as watcher:
        watcher.note("a note")
        watcher.update(RunProgress(phase="training"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_or_fails_is_no_lost_reader(number: int, tmp_path: Path) -> None:
    with (tmp_path / "status.json").open("w") as file:
        stream = outliving_reader(cast("TextIO", _Failing(file, number=number)))
        with pytest.raises(OSError, match=os.strerror(number)):
            stream.write("a line")
    with pytest.raises(OSError, match="error"):
        outliving_reader(cast("TextIO", _Failing(io.StringIO(), number=errno.EIO))).write("a line")


def test_a_disk_that_fails_at_the_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "status.json").open("w") as file:
        monkeypatch.setattr(sys, "stdout", _Failing(file, number=errno.EIO))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)), outliving_readers():
            print(end="")


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
        assert not has_reader(sys.stdout)
        print("dropped by Python")
