"""One process at a time: the lock of a run directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from cohort.core.durable_files import storage_full_named
from cohort.core.errors import InUseError, RunStateError

__all__ = ["RunLock"]

# RunLock.holder() takes a shared lock for some microseconds: a writer that meets it tries again instead of failing
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.02


def _lock(descriptor: int) -> None:
    for left in reversed(range(_ATTEMPTS)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_PAUSE_SECONDS)


class RunLock:
    """Held from :meth:`acquire` (or ``with``) to :meth:`release`; the kernel releases it when the process dies."""

    # the lock is `flock` and not the file: a file that a killed process left behind keeps no one out. Its text only
    # names the holder in the message that a second process prints

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def path(self) -> Path:
        """The file that is locked."""
        return self._path

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            InUseError: another process holds it.
            RunStateError: the file system knows no locks.
            StorageFullError: the disk is full; the lock is not held.
        """
        if self._descriptor is not None:
            raise RuntimeError(f"{self._path} is already held by this object")
        with storage_full_named(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor)
        except OSError as error:
            holder = self._holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InUseError(
                    f"{self._path.parent} is in use by {holder}; watch it with `cohort status {self._path.parent} "
                    "--watch`, wait until it ends, stop it, or choose another directory"
                ) from error
            raise RunStateError(
                f"the file system of {self._path.parent} cannot lock files ({error.strerror}); "
                "choose a run directory on a local disk"
            ) from error
        # written after the lock is taken, so that the text is always that of the holder
        who = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            with storage_full_named(self._path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(who).encode() + b"\n", 0)
        except BaseException:
            # a descriptor that is left open would hold the lock for as long as this process lives
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._descriptor is None:
            return
        # emptied, not removed: removing a lock file lets two processes lock two files of one name
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None

    def holder(self) -> str | None:
        """Return who holds the lock now (``process 12 on host since ...``); None when no process does."""
        if self._descriptor is not None:
            return self._holder(self._descriptor)
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except OSError:
            return self._holder(descriptor)
        finally:
            os.close(descriptor)

    def holding_process(self) -> int | None:
        """Return the number of the process of this machine that holds the lock now; None if there is none."""
        if self.holder() is None:
            return None
        try:
            who = json.loads(self._path.read_text(encoding="utf-8"))
            return int(who["pid"]) if who["host"] == socket.gethostname() else None
        except (ValueError, KeyError, TypeError, OSError):
            return None

    @staticmethod
    def _holder(descriptor: int) -> str:
        try:
            who = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {who['pid']} on {who['host']} since {who['since']}"
        except (ValueError, KeyError, TypeError, OSError):
            return "another process"

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
