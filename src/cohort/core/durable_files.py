"""Files that are whole or absent: written under a temporary name, flushed to the disk, then renamed.

A reader never sees half a file or half a directory, whenever the writer is killed. No space left becomes a
:class:`~cohort.core.errors.StorageFullError` that names the path; what stood there before is untouched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cohort.core.errors import StorageFullError
from cohort.core.units import format_bytes

__all__ = [
    "PARTIAL_SUFFIX",
    "atomic_directory",
    "atomic_file",
    "finished_path",
    "flush_to_disk",
    "is_older",
    "partial_paths",
    "recover_directory",
    "remove_leftovers",
    "remove_old_leftovers",
    "storage_full_named",
    "write_bytes",
    "write_text",
]

PARTIAL_SUFFIX = ".partial"
_REPLACED_SUFFIX = ".replaced"
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# libraries that write for us (safetensors, SQLite, torch) wrap the operating system's error in their own
_FULL_TEXTS = ("no space left on device", "disk quota exceeded", "database or disk is full", "os error 28")
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# after its last write, a directory whose lock is free is that of a killed writer; some file systems keep the locks of
# each machine to itself
_ABANDONED_SECONDS = 600.0
# no file of a cache takes as long to write
_LEFTOVER_SECONDS = 3600.0


def _means_storage_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return True
    return any(text in str(error).lower() for text in _FULL_TEXTS)


def _storage_full_error(path: Path) -> StorageFullError:
    folder = path if path.is_dir() else path.parent
    free = "unknown"
    with suppress(OSError):
        free = format_bytes(shutil.disk_usage(folder).free)
    return StorageFullError(
        f"no space left to write {path} ({free} free in {folder}); everything written before is safe. "
        f"Free space on that disk (old run directories and their trials/ folders are the usual large ones) "
        f"or raise the quota, then run `cohort resume` on the run directory"
    )


@contextmanager
def storage_full_named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn "no space left" of any writer inside the block into an error that names ``path``.

    Raises:
        StorageFullError: the disk or the quota is full.
    """
    try:
        yield
    except StorageFullError:
        raise
    except Exception as error:
        if _means_storage_full(error):
            raise _storage_full_error(Path(path)) from error
        raise


def flush_to_disk(path: Path) -> None:
    """Wait until a file or a directory is on the disk, where its file system can tell."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some file systems cannot flush a directory; the rename is still atomic there
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _partial_path(path: Path) -> Path:
    """Return a new name in the same folder: a rename is atomic only within one file system."""
    return Path(tempfile.mktemp(prefix=f".{path.name}.", suffix=PARTIAL_SUFFIX, dir=path.parent))


def finished_path(path: str) -> str:
    """Return the path that a file is to have, from that of one being written; any other path as it is."""
    folder, name = os.path.split(path)
    if not (name.startswith(".") and name.endswith(PARTIAL_SUFFIX)):
        return path
    return os.path.join(folder, name.removesuffix(PARTIAL_SUFFIX).rpartition(".")[0].removeprefix("."))


def partial_paths(path: str | os.PathLike[str]) -> list[Path]:
    """Return what lies next to a path of writers that have not finished it, or were killed: files and directories."""
    target = Path(path)
    found = target.parent.glob(f".{glob.escape(target.name)}.*{PARTIAL_SUFFIX}")
    # those of `a.b` begin as those of `a` do
    return sorted(each for each in found if finished_path(str(each)) == str(target))


def _move_into_place(partial: Path, target: Path, *, replaces: bool) -> None:
    if not replaces:
        try:
            os.link(partial, target)
            return
        except FileExistsError:
            return
        except OSError as error:
            # some file systems have no hard links
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
    os.replace(partial, target)


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, replaces: bool = True, is_flushed: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends well it becomes ``path``, else it is removed.

    Args:
        replaces: False keeps a file that another process has put there in the meantime.
        is_flushed: False does not wait for the disk: a killed process still leaves the file whole or not there,
            but a machine that stops may leave a part of it.

    Raises:
        StorageFullError: the disk or the quota is full; ``path`` is as it was.
    """
    target = Path(path)
    partial = _partial_path(target)
    try:
        with storage_full_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            if is_flushed:
                flush_to_disk(partial)
            _move_into_place(partial, target, replaces=replaces)
            if is_flushed:
                flush_to_disk(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], content: bytes, *, is_flushed: bool = True) -> None:
    """Write ``content`` to ``path``, whole or not at all; ``is_flushed`` as of :func:`atomic_file`.

    Raises:
        StorageFullError: the disk or the quota is full; ``path`` is as it was.
    """
    with atomic_file(path, is_flushed=is_flushed) as partial:
        partial.write_bytes(content)


def write_text(path: str | os.PathLike[str], text: str, *, is_flushed: bool = True) -> None:
    """Write ``text`` as UTF-8, as :func:`write_bytes` does."""
    write_bytes(path, text.encode("utf-8"), is_flushed=is_flushed)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step where the system can (Linux); return whether it did."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    arguments = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return bool(rename(*arguments) == 0)


def _replaced_path(path: Path) -> Path:
    return path.with_name(f".{path.name}{_REPLACED_SUFFIX}")


def recover_directory(path: str | os.PathLike[str]) -> None:
    """Put back a directory whose replacement was interrupted between its two renames (systems without a swap)."""
    target = Path(path)
    replaced = _replaced_path(target)
    if replaced.is_dir() and not target.exists():
        os.replace(replaced, target)
    elif replaced.is_dir():
        shutil.rmtree(replaced)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock by which others see that the writer of a directory lives, where the file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # it waits for one who only looks whether the lock is free
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _is_locked(folder: Path, *, without_locks: bool) -> bool:
    """Return whether the writer of a directory lives; ``without_locks`` where the file system cannot tell."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return without_locks
    finally:
        os.close(descriptor)


def is_older(path: Path, seconds: float) -> bool:
    """Return whether a file, or anything in a directory, was last written ``seconds`` ago or earlier.

    Raises:
        OSError: it is gone, or was changed meanwhile.
    """
    # a link may lead nowhere
    return time.time() - max(entry.lstat().st_mtime for entry in (path, *path.rglob("*"))) >= seconds


def _remove_abandoned(path: Path) -> None:
    """Remove the directories that killed writers of ``path`` left: a merged model is many gigabytes, and hidden."""
    for folder in partial_paths(path):
        with suppress(OSError):
            if is_older(folder, _ABANDONED_SECONDS) and folder.is_dir() and not _is_locked(folder, without_locks=True):
                shutil.rmtree(folder, ignore_errors=True)


def _exchange_into_place(partial: Path, target: Path) -> None:
    if not target.exists():
        os.replace(partial, target)
    elif not _exchange(partial, target):
        os.replace(target, _replaced_path(target))
        os.replace(partial, target)
        shutil.rmtree(_replaced_path(target))


@contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty temporary directory; when the block ends well it replaces ``path`` and all that was in it.

    On Linux the two directories are swapped in one step. Elsewhere there are two renames, and
    :func:`recover_directory` recovers from a kill between them. What killed writers of ``path`` have left is removed.

    Raises:
        StorageFullError: the disk or the quota is full; ``path`` is as it was.
    """
    target = Path(path)
    recover_directory(target)
    _remove_abandoned(target)
    partial = _partial_path(target)
    try:
        with storage_full_named(target):
            partial.mkdir(parents=True)
            with _locked(partial):
                yield partial
                for entry in sorted(partial.rglob("*")):
                    if not entry.is_symlink():
                        flush_to_disk(entry)
                flush_to_disk(partial)
                _exchange_into_place(partial, target)
            flush_to_disk(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what killed writers left in ``folder`` itself. No other process may be writing files there."""
    # the star at the end: SQLite puts its journal next to the file, under a longer name
    for entry in Path(folder).glob(f".*{PARTIAL_SUFFIX}*"):
        if entry.is_dir() and not entry.is_symlink():
            with suppress(OSError):
                # an export goes on while its run is resumed
                if not _is_locked(entry, without_locks=False):
                    shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove_old_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what killed writers left in a folder that other processes write to: what was not written for an hour."""
    found: list[Path] = []
    # the folder may be out of reach, and a cache only saves time
    with suppress(OSError):
        found += Path(folder).glob(f".*{PARTIAL_SUFFIX}")
    for entry in found:
        # another process may remove it at the same time
        with suppress(OSError):
            if not is_older(entry, _LEFTOVER_SECONDS):
                continue
            if not entry.is_dir() or entry.is_symlink():
                entry.unlink()
            elif not _is_locked(entry, without_locks=False):
                shutil.rmtree(entry, ignore_errors=True)
