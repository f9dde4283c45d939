"""The lock: one process at a time, named, and gone with it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.core.errors import RunStateError, StorageFullError
from cohort.runs.directory import RunDirectory
from cohort.runs.lock import RunLock


def test_a_full_disk_leaves_no_lock_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    lock = RunLock(tmp_path / ".lock")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StorageFullError):
            lock.acquire()
    # once there is room, neither this object nor another one finds it held
    assert RunLock(tmp_path / ".lock").holder() is None
    with lock:
        assert lock.holder() is not None


def test_whoever_only_looks_who_holds_a_lock_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, looker = RunDirectory(tmp_path).lock(), os.open(RunDirectory(tmp_path).lock()._path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(looker, fcntl.LOCK_UN))
    lock.acquire()
    lock.release()
    os.close(looker)


def test_the_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cohort.runs.lock import RunLock\n"
        "RunLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    path = RunDirectory(tmp_path).lock()._path
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunStateError, match=f"process {holder.pid} on "):
            RunDirectory(tmp_path).lock().acquire()
        assert str(holder.pid) in (RunDirectory(tmp_path).lock().holder() or "")
        holder.kill()
        holder.wait()
    lock = RunDirectory(tmp_path).lock()
    with lock, pytest.raises(RunStateError, match=f"process {os.getpid()} on "):
        RunDirectory(tmp_path).lock().acquire()
    with lock:
        assert str(os.getpid()) in (lock.holder() or "")
    assert lock.holder() is None
    lock.release()
