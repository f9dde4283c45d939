"""With the results of a run written, its spare checkpoints follow: the best ones of trials that lost."""

from __future__ import annotations

import time
from collections.abc import Callable

from cohort.core.units import counted, format_bytes, format_duration
from cohort.engine.train.open_run import OpenRun

__all__ = ["SpareWriter"]

# shorter than anyone would read a line about it
QUIET_SECONDS = 2.0
POLL_SECONDS = 0.05


class SpareWriter:
    """Writes what no result needs, while other tasks train or until it is done."""

    def __init__(self, run: OpenRun, *, say: Callable[[str], None]) -> None:
        """Begin to write; ``say`` receives what is going on, in words."""
        self._run, self._say = run, say
        self._began = self._said_at = run.clock.monotonic()
        self._has_told = self._has_told_lost = False
        self._behind = run.state_store.write_spares()

    def is_done(self) -> bool:
        """Take what is written by now, tell the watcher, and return whether nothing is left."""
        is_done = self._behind.take_written()
        now = self._run.clock.monotonic()
        if not is_done and now - self._said_at >= QUIET_SECONDS:
            self._said_at = now
            self._tell(now - self._began)
        if is_done:
            self._tell_lost()
        return is_done

    def wait(self) -> bool:
        """Wait until all is written; Ctrl-C and SIGTERM leave out what has not begun. Return False after one."""
        try:
            while not self.is_done():
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.give_up()
            return False
        return True

    def give_up(self) -> None:
        """Stop writing, and say what is not there."""
        self._behind.give_up()
        self._tell_lost()

    def _tell(self, seconds: float) -> None:
        behind, root = self._behind, self._run.directory.root
        if not self._has_told:
            self._has_told = True
            what = f"the best checkpoints of {counted(behind.num_files, 'trial')} that lost"
            size = format_bytes(behind.num_bytes)
            self._run.watcher.note(f"the results are in {root}; {what} follow ({size}), and Ctrl-C leaves out the rest")
        done = behind.num_bytes - behind.bytes_left
        left = f", {format_duration(seconds * behind.bytes_left / done)} left" if done else ""
        files = f"{behind.num_files - behind.num_left} of {behind.num_files}"
        self._say(f"writing the best checkpoints of trials that lost: {files}{left}")

    def _tell_lost(self) -> None:
        behind, root = self._behind, self._run.directory.root
        if not behind.lost or self._has_told_lost:
            return
        self._has_told_lost = True
        why = "interrupted" if behind.error is None else f"warning: {behind.error}"
        which = f"trial{'s' * (len(behind.lost) > 1)} {', '.join(map(str, behind.lost))}"
        self._run.watcher.note(
            f"{why}; the results are whole, but the best checkpoint of {which} is not on disk: "
            f"`cohort resume {root} --trial N` trains it again"
        )
