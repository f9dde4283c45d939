"""A closed terminal ends no run; other errors of output still show."""

from __future__ import annotations

import errno
import io

import pytest

from cohort.cli.terminal.lost_terminal import outliving_terminal
from cohort.cli.terminal.progress import RUN_VIEW, watching
from cohort.engine.train.watching.progress import RunProgress


class _Closed(io.StringIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(self.number, "no terminal")


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_progress_outlives_its_terminal(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", terminal)
    with watching(RUN_VIEW, _Closed(errno.EIO)) as watcher:
        watcher.note("a note")
        watcher.update(RunProgress(phase="training"))


def test_a_full_disk_is_no_closed_terminal() -> None:
    with pytest.raises(OSError, match="no terminal"):
        outliving_terminal(_Closed(errno.ENOSPC)).write("a line")
