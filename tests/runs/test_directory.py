"""Run directories: refusing what is there, one process at a time, nothing half-written."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cohort.core import durable_files
from cohort.core.durable_files import atomic_directory, atomic_file, write_bytes, write_text
from cohort.core.errors import InputError, RunStateError, StorageFullError
from cohort.runs.directory import RunDirectory


def test_create_takes_a_new_or_an_empty_directory(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "a" / "b").root.is_dir()
    directory = RunDirectory.create(tmp_path / "a" / "b")
    with directory.lock():
        pass
    (directory.root / ".run.db.abc.partial").touch()
    RunDirectory.create(directory.root)


def test_create_refuses_another_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    with pytest.raises(InputError, match=r"already holds another run.*cohort resume"):
        RunDirectory.create(tmp_path)


def test_create_refuses_foreign_files_and_names_them(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"photo{number}.jpg").touch()
    with pytest.raises(InputError, match=r"photo0\.jpg.* and 2 more"):
        RunDirectory.create(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a file"):
        RunDirectory.create(tmp_path / "file")
    with pytest.raises(InputError, match="which is a file"):
        RunDirectory.create(tmp_path / "file" / "below")


def test_create_refuses_what_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write anywhere, so the answer of the system is put in its place
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(InputError, match="a directory that is not writable"):
        RunDirectory.create(tmp_path)
    with pytest.raises(InputError, match="which is not writable"):
        RunDirectory.create(tmp_path / "below")


def test_open_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.db in it"):
        RunDirectory.open(tmp_path)
    with pytest.raises(InputError, match="nothing"):
        RunDirectory.open(tmp_path / "absent")


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


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "first é")
    assert path.read_text(encoding="utf-8") == "first é"
    with pytest.raises(UnicodeEncodeError), atomic_file(path) as partial:
        partial.write_text("half \ud800", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "first é"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("swap", [True, False], ids=["swapped", "renamed twice"])
def test_a_directory_is_replaced_whole(tmp_path: Path, swap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not swap:
        monkeypatch.setattr(durable_files, "_exchange", lambda first, second: False)
    best = tmp_path / "best"
    for content in ("1", "2"):
        with atomic_directory(best) as partial:
            (partial / "sub").mkdir()
            (partial / "sub" / content).write_text(content)
            assert not best.exists() or os.listdir(best / "sub") == ["1"]
    assert os.listdir(best / "sub") == ["2"]
    with pytest.raises(UnicodeEncodeError), atomic_directory(best) as partial:
        (partial / "half").write_text("half \ud800", encoding="utf-8")
    assert os.listdir(best) == ["sub"]
    assert os.listdir(tmp_path) == ["best"]


def test_clean_up_mends_what_a_kill_left(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (tmp_path / ".best.replaced").mkdir()
    (tmp_path / ".best.replaced" / "adapter_config.json").touch()
    (tmp_path / ".best.x.partial").mkdir()
    trial = directory.trial(7)
    assert trial == tmp_path / "trials" / "0007"
    trial.mkdir(parents=True)
    (trial / ".state.x.partial").touch()
    (directory.trials / ".0008.replaced").mkdir()
    directory.clean_up()
    assert os.listdir(directory.best) == ["adapter_config.json"]
    assert sorted(os.listdir(tmp_path)) == ["best", "trials"]
    assert sorted(os.listdir(directory.trials)) == ["0007", "0008"]
    assert os.listdir(trial) == []


def _os_error(number: int) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_left_names_the_path_and_leaves_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.csv"
    write_bytes(path, b"old")
    monkeypatch.setattr(durable_files, "_flush_to_disk", _os_error(number))
    with pytest.raises(StorageFullError, match=r"results\.csv.*cohort resume"):
        write_bytes(path, b"new")
    with pytest.raises(StorageFullError, match="best"), atomic_directory(tmp_path / "best") as partial:
        (partial / "file").touch()
    assert os.listdir(tmp_path) == ["results.csv"]
    assert path.read_bytes() == b"old"


def test_a_library_s_own_words_for_a_full_disk_count_and_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError), atomic_file(tmp_path / "a"):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(PermissionError), atomic_file(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_real_full_device_is_recognised() -> None:
    with (
        pytest.raises(StorageFullError),
        durable_files.storage_full_named("/dev/full"),
        open("/dev/full", "wb") as full,
    ):
        full.write(b"x" * 10_000)
